"""`clozeline` and `python -m clozeline`: run a command.

An interrupt has one meaning from the first import on: exit code 75 (run the same command again)
where a command keeps its work, else 130 for Ctrl-C and 143 for SIGTERM.
"""

import atexit
import os
import signal
import sys
from contextlib import suppress

from clozeline.pipeline.common.signals import (
    interrupt,
    outside_imports,
    receive_delayed,
    repeat_lost_interrupt,
)

#: Commands that keep their work, as their `kept` says; asked before they are imported.
RESUMABLE = ("shards", "pretrain", "finetune", "benchmark")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED = 75  #: as `pipeline.common.errors` has it


def run() -> None:
    """Import the commands, then run one."""
    _open_closed_streams()
    atexit.register(_ignore_signals)  # the first one runs last
    try:
        sys.unraisablehook = repeat_lost_interrupt
        receive = outside_imports(interrupt)
        for kind in SIGNALS:
            if signal.getsignal(kind) != signal.SIG_IGN:  # as in a shell's background job
                signal.signal(kind, receive)
        os.register_at_fork(after_in_child=_end_at_sigterm)
        from clozeline.train.cli import main

        receive_delayed()
    except KeyboardInterrupt as error:
        is_resumable = len(sys.argv) > 1 and sys.argv[1] in RESUMABLE
        print("\nInterrupted." + " Run the same command again." * is_resumable, file=sys.stderr)
        number = error.args[0] if error.args else signal.SIGINT
        sys.exit(STOPPED if is_resumable else 128 + number)
    try:
        main(prog_name="clozeline")
    except SystemExit as end:
        _end_at_signals(end.code if isinstance(end.code, int) else bool(end.code))
        raise


def _end_at_signals(code: int) -> None:
    """The exit code is decided: a signal only ends what the interpreter still waits for."""

    def leave(*_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    for kind in SIGNALS:
        signal.signal(kind, leave)


def _ignore_signals() -> None:
    """While modules are taken down, when Python no longer calls handlers."""
    for kind in SIGNALS:
        signal.signal(kind, signal.SIG_IGN)


def _end_at_sigterm() -> None:
    """In a forked process, such as a data loader's: whoever started it ends it without a word."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _open_closed_streams() -> None:
    """After `2>&-`, the first file opened would get number 2, and warnings be written into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(number, True)  # workers, too
            setattr(sys, name, os.fdopen(number, mode))


if __name__ == "__main__":
    run()
