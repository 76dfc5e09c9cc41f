"""The last line of a command: an expected error with its exit code, or the next command."""

import errno
import os
import pickle
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from clozeline.pipeline.commandline.removed_options import COMMANDS, EVERY, OPTIONS
from clozeline.pipeline.common import errors
from clozeline.pipeline.common.errors import ClozelineError, InputError
from clozeline.pipeline.common.json_files import check_sums
from clozeline.pipeline.dataset.cache_file import read_ends
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.train.cli import InOrder, main
from tests.support.command import invoke
from tests.support.printed_commands import parse
from tests.support.small_training import command_line

MANUAL = (Path(__file__).parents[2] / "docs/manual/guarantees.md").read_text()
EXIT_CODES = {
    "InputError": 2,
    "OptionError": 2,
    "CorruptDataError": 2,
    "DamagedFileError": 2,
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


def test_every_error_class_has_an_exit_code_that_the_manual_lists():
    classes = {
        name: found.exit_code
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, ClozelineError)
    }
    assert classes == {"ClozelineError": 1, **EXIT_CODES}
    table = MANUAL[MANUAL.index("## Exit codes") :].partition("\n## ")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)}
    assert listed == {0, *EXIT_CODES.values()}


@pytest.mark.parametrize("name", EXIT_CODES)
def test_an_error_is_one_line_and_its_exit_code(name):
    result = fail_with(getattr(errors, name)("the file is gone; restore it."))
    assert (result.exit_code, result.stdout) == (EXIT_CODES[name], "")
    assert result.stderr == "Error: the file is gone; restore it.\n"


def test_a_message_is_one_line_whatever_it_quotes():
    error = InputError("tab\t, line\nend, \u202eleft, \u2028, \udce9: bad")
    assert str(error) == r"tab\t, line\nend, \u202eleft, \u2028, \udce9: bad"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


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


def test_what_the_system_refuses_is_one_line_and_an_error_of_our_own_keeps_its_traceback():
    result = fail_with(OSError(errno.EACCES, os.strerror(errno.EACCES), "/closed/out"))
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: /closed/out: Permission denied; let this user access it (chmod, chown), then "
        "rerun the command.\n"
    )
    result = fail_with(AssertionError("a broken invariant"))
    assert isinstance(result.exception, AssertionError)


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


# --- The last line of a command is the next one, and clozeline takes it ---------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("inspect {}/data -n 1", "pretrain {}/data --out {}/run"),
        ("evaluate {}/run {}/data --limit 8", "finetune {}/run TRAIN.csv --out {}/classifier"),
        ("fill {}/run [MASK]", "finetune {}/run TRAIN.csv --out {}/classifier"),
        ("report {}/classifier --out {}/page.html", "predict {}/classifier TEXT"),
    ],
)
def test_what_a_folder_is_decides_what_follows(line, expected, whole):
    """And `parse` takes it."""
    result = invoke(*(word.replace("{}", str(whole)) for word in line.split()))
    assert result.exit_code == 0, result.output
    last = result.stderr.splitlines()[-1]
    assert last == f"Next: clozeline {expected}".replace("{}", str(whole))
    parse(last.removeprefix("Next: "))


def test_a_run_begins_with_what_it_does_and_ends_with_what_follows(small_folder, tmp_path):
    line = command_line(small_folder, tmp_path / "run", max_steps=1)
    result = invoke(*line)
    rows = result.stderr.splitlines()
    after = f"finetune {tmp_path}/run TRAIN.csv --out {tmp_path}/classifier"
    assert rows[-1] == f"Next: clozeline {after}"
    values = dict(row.split(None, 1) for row in rows if ":" not in row.split()[0])
    assert list(values) == ["model", "device", "data", "training", "export", "files"]
    assert values["model"].startswith("2 layers of 128: ")
    assert values["device"].startswith("cpu, fp32, 1 process of ")
    assert values["data"].endswith(": 57 examples of up to 16 tokens, 23 held out")
    assert values["training"].startswith("steps 1 to 1 of 8 examples: 0.1 epochs; adamw, peak")
    assert values["export"] == "opens in transformers as a plain BERT"
    assert values["files"].endswith(f"tensorboard --logdir {tmp_path}/run/tensorboard")


def test_the_next_command_reads_the_same_columns(tmp_path, monkeypatch):
    """Also if the tokenizer has the name that the shards would have."""
    monkeypatch.chdir(tmp_path)
    Path("a b.jsonl").write_text('{"title": "The cat", "body": "It sat on the mat."}\n' * 9)
    how = "--text-columns title --text-columns body"
    done = invoke("tokenizer", "a b.jsonl", "--vocab-size", 100, "--out", "shards", *how.split())
    expected = f"clozeline shards 'a b.jsonl' {how} --tokenizer shards --out shards-2"
    assert done.stderr.splitlines()[-1] == f"Next: {expected}"
    parse(expected)


# --- Options and commands that were removed end in one line that says what to use instead ---------
ROWS = [
    ("fill" if name == EVERY else name, *row)
    for name, rows in OPTIONS.items()
    for row in rows.items()
]


def error_line(*words):
    """The line in which a refused command ends."""
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("command", "option", "instead"), ROWS)
def test_a_removed_option_names_what_to_use_instead(command, option, instead, tmp_path):
    assert command in main.commands
    expected = f"{option} was removed; {instead}."
    assert error_line(command, option, "x") == f"Error: {expected}"
    assert error_line(command, f"{option}=x") == f"Error: {expected}"
    config, key = tmp_path / "options.toml", option[2:].replace("-", "_")
    config.write_text(f"{key} = 1\n")
    assert error_line(command, "--config", str(config)) == f"Error: {config}: {expected}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_removed_command_names_what_to_use_instead(command):
    expected = f"Error: `clozeline {command}` was removed; {COMMANDS[command]}."
    assert error_line(command) == error_line(command, "work/run", "--port", "1") == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pretrain", "x", "--lr", "3"), "option '--lr'. Did you mean '--learning-rate'?"),
        (("shards", "x", "--msl", "3"), "option '--msl'. Did you mean '--max-seq-length'?"),
        (("fill", "--ngrams"), "option '--ngrams'."),
        (("fil",), "command 'fil'. Did you mean 'fill'?"),
    ],
)
def test_what_never_was_is_reported_with_what_has_its_initials_or_is_near(words, said):
    assert error_line(*words) == f"Error: No such {said}"
