"""`clozeline` called in this process: its output, or the one line with which it refuses."""

import io

from click.testing import CliRunner, Result

from clozeline.train.cli import main


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [*map(str, words)])


def output_of(*words: object, code: int = 0) -> str:
    """All output of a command, without the line that names the next one."""
    done = invoke(*words)
    assert done.exit_code == code, (done.output, done.exception)
    lines = done.output.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("Next: "))


def refused(*words: object, code: int = 2) -> str:
    """What follows `Error: ` in all that a command prints, but for progress, before it gives up."""
    done = invoke(*words)
    assert done.exit_code == code, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit)
    [line] = [line for line in done.output.splitlines() if line and "%|" not in line]
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


def standard_input(data: bytes) -> io.TextIOWrapper:
    """What a process finds as `sys.stdin` when these bytes are piped into it."""
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))  # type: ignore[arg-type]
