"""Every expected error ends a command with one line and the exit code that the manual lists."""

import errno
import os
import pickle
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from clozeline.pipeline.common import errors
from clozeline.pipeline.common.checksums import check_sums
from clozeline.pipeline.common.errors import ClozelineError, InputError
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.job.cache_file import read_ends
from clozeline.pipeline.report.html import printable
from clozeline.train.cli import InOrder

MANUAL = (Path(__file__).parents[2] / "docs/manual/guarantees.md").read_text()
EXIT_CODES = {
    "InputError": 2,
    "CorruptDataError": 2,
    "JobFailedError": 1,
    "CheckFailedError": 1,
    "DivergedError": 1,
    "LostProcessError": 1,
    "OutOfMemoryError": 1,
    "StoreError": 1,
    "UnfinishedError": errors.STOPPED,
}


def fail_with(error):
    """What a command does that raises the error."""

    def callback():
        raise error

    group = InOrder("clozeline", commands={"work": click.Command("work", callback=callback)})
    return CliRunner().invoke(group, ["work"])


def test_every_error_class_has_an_exit_code():
    classes = {
        name: found.exit_code
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, ClozelineError)
    }
    assert classes == {"ClozelineError": 1, **EXIT_CODES}


@pytest.mark.parametrize("name", EXIT_CODES)
def test_an_error_is_one_line_and_its_exit_code(name):
    result = fail_with(getattr(errors, name)("the file is gone; restore it."))
    assert (result.exit_code, result.stdout) == (EXIT_CODES[name], "")
    assert result.stderr == "Error: the file is gone; restore it.\n"


def test_a_message_is_one_line_whatever_it_quotes():
    error = InputError("tab\t, line\nend, \u202eleft, \u2028, \udce9: bad")
    assert str(error) == r"tab\t, line\nend, \u202eleft, \u2028, \udce9: bad"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_the_system_refuses_is_one_line_with_the_path():
    result = fail_with(OSError(errno.EACCES, os.strerror(errno.EACCES), "/closed/out"))
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: /closed/out: Permission denied; let this user access it (chmod, chown), then "
        "rerun the command.\n"
    )


def test_spaces_of_any_width_are_shown_as_they_are():
    text = "Bonjour\u00a0!\n\u3000\u6771\u4eac, 5\u202fkm"
    assert (printable(text), errors.escaped(text)) == (text, text.replace("\n", r"\n"))


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (OSError(errno.ENOSPC, "any"), "free disk space"),
        (RuntimeError('Os { code: 28, message: "No space left on device" }'), "free disk space"),
        (RuntimeError("I/O error: any (os error 13)"), "let this user write it (chmod, chown)"),
        (OSError(errno.EROFS, "any"), "mount its disk for writing"),
        (OSError(errno.EIO, "any"), "check its disk"),
    ],
)
def test_the_advice_about_a_file_that_cannot_be_written_says_what_to_do(error, step):
    assert errors.advice(error) == step


def test_an_error_of_our_own_keeps_its_traceback():
    result = fail_with(AssertionError("a broken invariant"))
    assert isinstance(result.exception, AssertionError)


def test_the_readme_lists_the_exit_codes():
    table = MANUAL[MANUAL.index("## Exit codes") :].partition("\n## ")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)}
    assert listed == {0, *EXIT_CODES.values()}


def test_a_file_that_cannot_be_read_is_named_with_the_reason_and_what_to_do(tmp_path):
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  a\n")
    for name in ("a", "a.arrow", "a.tokens"):
        (tmp_path / name).symlink_to(name)  # to itself
    for name, read in (
        ("a", lambda path: check_sums(path.parent)),
        ("a.arrow", read_shard),
        ("a.tokens", lambda path: read_ends([path])),
    ):
        with pytest.raises(InputError) as caught:
            read(tmp_path / name)
        assert str(caught.value) == (
            f"{tmp_path / name} cannot be read (Too many levels of symbolic links); check its disk "
            "or link, or restore it, then run the command again."
        )
    closed = errors.unreadable("a.arrow", PermissionError(errno.EACCES, "any"))
    assert str(closed) == (
        "a.arrow cannot be read (Permission denied); let this user read it (chmod, chown), then "
        "run the command again."
    )
