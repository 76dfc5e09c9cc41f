#!/usr/bin/env python3
"""torchrun, with the exit code of the processes that it started.

    python deploy/launch.py --nproc-per-node 8 --no-python clozeline pretrain shards --out run

torchrun exits with 1 whatever its processes exit with. A scheduler has to know more:

    75  stopped, also while it waited for other machines; the same command continues
    2   an option or an input is wrong; the same command fails again
    1   anything else, also machines that do not meet; the same command may succeed later
"""

import signal
import sys
from collections.abc import Iterable
from types import FrameType

STOPPED = 75
USAGE = 2
FAILED = 1


def main(arguments: list[str]) -> int:
    """Run torchrun with these arguments; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # torch takes seconds to import
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args, run

    def stop(number: int, frame: FrameType | None) -> None:
        raise SignalException(f"signal {number}", sigval=signal.Signals(number))

    # torchrun has handlers of its own only while processes run, and not in a rendezvous.
    signal.signal(signal.SIGTERM, stop)
    parsed = parse_args(arguments)
    try:
        run(parsed)
    except SignalException:
        return STOPPED
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return exit_code(failure.exitcode for failure in error.failures.values())
    except RendezvousError as error:
        print(rendezvous_failure(error, parsed.rdzv_endpoint), file=sys.stderr)
        return FAILED
    return 0


def rendezvous_failure(error: Exception, endpoint: str) -> str:
    """One line: torch's own messages have a cause with a C++ stack, or no text at all."""
    cause = str(error.__cause__ or error).partition("\n")[0].rstrip(".")
    return (
        f"Error: the rendezvous at {endpoint} failed ({cause or type(error).__name__}). Check that "
        "this address is one of the machines, that all of them run the same command, and that the "
        "port is open; then start the command again on each."
    )


def exit_code(codes: Iterable[int]) -> int:
    """One code for those of several processes; -9 (a signal) is 137, as in a shell."""
    found = list(codes)
    for code in (USAGE, STOPPED):
        if code in found:
            return code
    return found[0] if found[0] > 0 else 128 - found[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
