"""`clozeline` and `python -m clozeline`: run a command.

Ctrl-C during the imports is not an error.
"""

import os
import sys

INTERRUPTED = 130  #: 128 + SIGINT, as in a shell


def run() -> None:
    """Import the commands, then run one."""
    _open_closed_streams()
    try:
        from clozeline.train.cli import main
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    main(prog_name="clozeline")


def _open_closed_streams() -> None:
    """After `2>&-`, the first file opened would get number 2, and warnings be written into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(number, True)  # workers, too
            setattr(sys, name, os.fdopen(number, mode))


if __name__ == "__main__":
    run()
