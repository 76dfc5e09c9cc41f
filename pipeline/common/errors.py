"""What can go wrong, and the exit code it ends a command with.

    0   done
    1   the job or the training failed on the way, or a check reported findings
    2   usage: an option or an input is wrong
    75  not finished: stopped on request, or waited for others in vain; the same command, of a run
        with --resume, continues (EX_TEMPFAIL, sysexits.h)

A broken invariant of our own is an `AssertionError` and ends with its traceback.
"""

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any
from unicodedata import category

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


class OptionError(ClozelineError, ValueError):
    """A value of an option is wrong; whoever read it from a file adds the file's name."""

    exit_code = 2


class CorruptDataError(InputError):
    """A file is damaged: cut off, altered, or not what its name says."""


class DamagedFileError(CorruptDataError):
    """A file of the token cache is missing or damaged; a step makes it again."""

    path: Any  #: of the file


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


#: What to do about a file that this user cannot read or write, by the number of the error. The
#: first three: the disk is full, or a quota or size limit is reached.
STEPS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free disk space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this user {} it (chmod, chown)"),
    errno.EROFS: "mount its disk for writing",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}

#: In the messages of RuntimeErrors from torch's CPU allocator, C++, CUDA, Python's threads, and
#: oneDNN, which gives no better reason.
OUT_OF_MEMORY = (
    "can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory",
    "can't start new thread", "could not create a primitive",
)  # fmt: skip


#: Packages by their name in an import statement, with the extra of pyproject.toml.
EXTRAS = {
    **dict.fromkeys(("apache_beam", "datasets", "jinja2", "matplotlib"), "pipeline"),
    **dict.fromkeys(("mwparserfromhell", "nltk", "psutil", "regex", "webdataset"), "pipeline"),
    **dict.fromkeys(("dask", "distributed"), "dask"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    "sklearn": "baseline",
}


@contextmanager
def as_input_error() -> Iterator[None]:
    """Turn ValueErrors into InputErrors, as those of `model`, which does not know them."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error


def advice(error: BaseException, do: str = "write", *, otherwise: str = "check its disk") -> str:
    """What to do about a file that this user cannot write, or whatever `do` says."""
    code, text = getattr(error, "errno", None), str(error)
    for number, step in STEPS.items():  # some libraries have the number in their message only
        if number == code or os.strerror(number) in text or f"os error {number})" in text:
            return step.format(do)
    return otherwise


def unreadable(path: object, error: OSError) -> InputError:
    """The error for a file that exists and cannot be read: what the system says, and what to do."""
    reason = os.strerror(error.errno) if error.errno else one_line(error)
    step = advice(error, "read", otherwise="check its disk or link, or restore it")
    return InputError(f"{path} cannot be read ({reason}); {step}, then run the command again.")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, in Python or in torch."""
    is_torch = isinstance(error, RuntimeError) and any(s in str(error) for s in OUT_OF_MEMORY)
    return is_torch or isinstance(error, MemoryError)


@contextmanager
def out_of_memory_in_one_line(work: str, remedy: str) -> Iterator[None]:
    """Raise OutOfMemoryError where an allocation fails in the `work`; the `remedy` is advice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = one_line(error) or type(error).__name__
        raise OutOfMemoryError(f"out of memory in {work}; {remedy}. ({reason})") from error


def escaped(text: str) -> str:
    r"""The text as one printable line: other characters are escaped as by `unicode_escape`.

    Spaces of any width stay: French has them before "!", and Japanese begins paragraphs with one.

    "tab\t, \u202eleft"  ->  "tab\\t, \\u202eleft"
    """
    return "".join(
        c if c.isprintable() or category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from or while they were handled."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """A library's error message on one line, cut to 300 characters."""
    return " ".join(str(error).split())[:300]


def first_names(names: Sequence[str]) -> str:
    """The first three, for a message: "a.txt, b.txt, c.txt, ..."."""
    return ", ".join(names[:3]) + (", ..." if names[3:] else "")


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message about an unknown word: "; did you mean gopher?", or "." for none.

    `cutoff` is how similar they have to be, from 0 to 1 (`difflib.get_close_matches`).
    """
    known = list(known)
    short = [name for name in known if len(word) > 1 and initials(name) == word]
    near = short or difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else "."


def initials(name: str) -> str:
    """--learning-rate  ->  --lr;  learning_rate  ->  lr"""
    return re.sub("(?<=[a-z])[a-z]+|(?<=[a-z])[-_]", "", name)


def own_version() -> str:
    """Clozeline's version, such as "0.1.0"; "unknown" in a checkout that is not installed."""
    try:
        return version("clozeline")
    except PackageNotFoundError:
        return "unknown"


def check_packages(feature: str, *names: str) -> None:
    """Raises InputError, which names the extra, where `feature` needs a package that is missing."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(f"{feature} needs {_not_installed(name)}")


def missing_package(error: BaseException | None) -> InputError | None:
    """The line for a failed import of a package of an extra; None for any other error."""
    for cause in causes(error):
        if isinstance(cause, ImportError) and (cause.name or "").partition(".")[0] in EXTRAS:
            return InputError(f"this command needs {_not_installed(str(cause.name))}")
    return None


def _not_installed(name: str) -> str:
    package = name.partition(".")[0]
    return f"{package}, which is not installed; run `pip install 'clozeline[{EXTRAS[package]}]'`."
