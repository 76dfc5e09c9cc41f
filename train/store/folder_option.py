"""Folders on the command line: local ones, and those of any store, through a local copy."""

from pathlib import Path
from typing import Any

import click

from clozeline.pipeline.commandline.config_options import PathOrUrl
from clozeline.pipeline.commandline.given_paths import note_given
from clozeline.pipeline.common.paths import AnyPath, is_local
from clozeline.train.store.local_folder import local_folder


class Folder(PathOrUrl):
    """A local folder, or the URL of one; the command gets the path of its local copy.

    With `writes`, what the command writes there goes to the store while it runs and at its end.
    """

    def __init__(self, *, writes: bool = False) -> None:
        self.writes = writes

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Path:
        """Raises InputError for a store that cannot be reached, or that another process writes."""
        if "://" not in str(value):
            path = super().convert(value, param, ctx)
            assert is_local(path)
            return path
        if ctx is None:
            return Path(value)
        with ctx.scope(cleanup=False):
            if ctx.resilient_parsing:  # nothing will be read or written
                note_given(Path(value), str(value))
                return Path(value)
            return _copy(str(value), writes=self.writes)


def local_copy(folder: AnyPath) -> Path:
    """The folder, for reading, or the local copy of one in a store."""
    return folder if is_local(folder) else _copy(folder.as_uri(), writes=False)


def _copy(url: str, *, writes: bool) -> Path:
    """The local copy, which the command may write until it ends."""
    folder = click.get_current_context().with_resource(local_folder(url, writes=writes))
    note_given(folder, url)
    return folder
