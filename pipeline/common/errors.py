"""What can go wrong, and the exit code it ends a command with.

    0   done
    1   the job or the training failed on the way, or a check reported findings
    2   usage: an option or an input is wrong
    75  not finished: stopped on request, or waited for others in vain; the same command, of a run
        with --resume, continues (EX_TEMPFAIL, sysexits.h)

A broken invariant of our own is an `AssertionError` and ends with its traceback.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

STOPPED = 75  #: exit code of what is not finished and can be continued


class ClozelineError(Exception):
    """Ends a command in one line: what is wrong, what was found, what to do.

        >>> try:
        ...     predict("work/nothing", "A lovely lamp.")
        ... except ClozelineError as error:
        ...     print(error)
        work/nothing does not exist; check the path.

    A message may quote names and data of any characters; see `escaped`.
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))


class InputError(ClozelineError, ValueError):
    """The user can fix it: a wrong option, or an input that cannot be used.

    >>> issubclass(InputError, ClozelineError), issubclass(InputError, ValueError)
    (True, True)
    """

    exit_code = 2


class CorruptDataError(InputError):
    """A file is damaged: cut off, altered, or not what its name says."""


class StoreError(ClozelineError):
    """A store does not answer or refuses: the network or an account is at fault, not the data."""


class JobFailedError(ClozelineError):
    """The job failed on the way; what is finished stays."""


class UnfinishedError(ClozelineError):
    """Other tasks of a job must finish something before this one can continue."""

    exit_code = STOPPED


class CheckFailedError(ClozelineError):
    """A check ran to its end and reported findings."""


class DivergedError(ClozelineError):
    """The loss or the gradient is no longer finite."""


class LostProcessError(ClozelineError):
    """Another process of the run died, hangs, or cannot be reached."""


class OutOfMemoryError(ClozelineError):
    """A training step does not fit in memory."""


#: Errors of a write when the disk is full, or a quota or size limit is reached.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: In the messages of RuntimeErrors from torch's CPU allocator, C++, CUDA, Python's threads, and
#: oneDNN, which gives no better reason.
OUT_OF_MEMORY = (
    "can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory",
    "can't start new thread", "could not create a primitive",
)  # fmt: skip


@contextmanager
def as_input_error() -> Iterator[None]:
    """Turn the ValueErrors of `model`, which does not know InputError, into InputErrors."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error


def advice(error: BaseException) -> str:
    """What to do about a file that cannot be written: "free disk space" only where that helps."""
    number = getattr(error, "errno", None)
    codes = [os.strerror(code) for code in NO_SPACE] + [f"os error {code})" for code in NO_SPACE]
    if number in NO_SPACE or any(code in str(error) for code in codes):
        return "free disk space"
    return "fix this"


def unreadable(path: object, error: OSError) -> InputError:
    """The error for a file that exists and cannot be read: what the system says, and what to do."""
    reason = os.strerror(error.errno) if error.errno else one_line(error)
    steps = {
        errno.EACCES: "let this user read it (chmod, chown)",
        errno.EPERM: "let this user read it (chmod, chown)",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
    }
    step = steps.get(error.errno or 0, "check its disk or link, or restore it")
    return InputError(f"{path} cannot be read ({reason}); {step}, then run the command again.")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, in Python or in torch."""
    is_torch = isinstance(error, RuntimeError) and any(s in str(error) for s in OUT_OF_MEMORY)
    return is_torch or isinstance(error, MemoryError)


def escaped(text: str) -> str:
    r"""The text as one printable line: unprintable characters are escaped as by `unicode_escape`.

    "tab\t, \u202eleft"  ->  "tab\\t, \\u202eleft"
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from or while they were handled."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """A library's error message on one line, cut to 300 characters."""
    return " ".join(str(error).split())[:300]
