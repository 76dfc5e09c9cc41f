"""`clozeline` and `python -m clozeline`: run a command.

Ctrl-C during the imports is not an error.
"""

import sys

INTERRUPTED = 130  #: 128 + SIGINT, as in a shell


def run() -> None:
    """Import the commands, then run one."""
    try:
        from clozeline.train.cli import main
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    main(prog_name="clozeline")


if __name__ == "__main__":
    run()
