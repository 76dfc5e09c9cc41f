"""`clozeline` and `python -m clozeline`: make the import path safe, then run a command.

Ctrl-C during the imports is not an error.
"""

import sys
from pathlib import Path

from clozeline import ROOT, check_neighbours

INTERRUPTED = 130  #: 128 + SIGINT, as in a shell
USAGE = 2


def run() -> None:
    """Import the commands, then run one."""
    # `python -m` looks for modules in the working directory first, where a user may well have a
    # train.py.
    if sys.path and Path(sys.path[0] or ".").resolve() == Path.cwd():
        sys.path[0] = str(ROOT)
    try:
        check_neighbours()
        from train.cli import main
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ImportError as error:
        if error.name:  # a missing package; `check_neighbours` gives no name
            raise
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(USAGE)
    main(prog_name="clozeline")


if __name__ == "__main__":
    run()
