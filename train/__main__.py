"""`clozeline` and `python -m train`: Ctrl-C during the imports is not an error."""

import sys

INTERRUPTED = 130  #: 128 + SIGINT, as of a shell


def run() -> None:
    """Import the commands, then run one."""
    try:
        from train.cli import main
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    main(prog_name="clozeline")


if __name__ == "__main__":
    run()
