"""`clozeline`: all commands, in the order in which data flows through them."""

import errno
from typing import Any

import click

from pipeline.cli import inspect, shards, tokenizer, verify
from pipeline.errors import InputError


class Failure(click.ClickException):
    """One line and exit code 2."""

    exit_code = 2


class InOrder(click.Group):
    """Lists its commands as declared, and turns what the user can mend into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The order of declaration, not of the alphabet."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise Failure(str(error)) from error
        except OSError as error:
            if error.errno not in MENDABLE:
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror}. Mend that and run the same again.") from error


# What the system says when the user's machine, and not our code, is at fault.
MENDABLE = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EPERM, errno.ENOTDIR)


@click.group(cls=InOrder)
@click.version_option(package_name="clozeline", message="%(prog)s %(version)s")
def main() -> None:
    """Pretrain BERT from raw text."""


for command in (tokenizer, shards, inspect, verify):
    main.add_command(command)
