"""The command line: help, version, options for Beam, errors, completion."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress

import click
import pytest
from click.testing import CliRunner

from clozeline.__main__ import RESUMABLE
from clozeline.pipeline import cli
from clozeline.pipeline.commandline.command import Command
from clozeline.pipeline.common import signals
from clozeline.pipeline.common.errors import STOPPED, own_version
from clozeline.pipeline.common.signals import handled
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.cli import InOrder, main
from clozeline.train.pretraining.recipes import DEFAULT_PRESET, RECIPES
from tests.support.command import invoke
from tests.support.printed_commands import parse
from tests.support.small_jobs import (
    COMMAND,
    ROOT,
    articles,
    clozeline,
    python,
    write_parquet,
    write_tokenizer,
)

COMMANDS = list(main.commands)
HELP = """\
Usage: clozeline [OPTIONS] COMMAND [ARGS]...

  Pretrain BERT from raw text, then fine-tune it.

  The commands are listed in data-flow order.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  tokenizer  Learn or adopt a vocabulary and a sentence splitter.
  shards     Build shards of masked examples from text.
  inspect    Show random examples in readable form.
  verify     Check every byte and every example of a data set.
  report     Write a page about a data set, runs and a classifier.
  view       Serve the page of `clozeline report`, updated at each reload.
  pretrain   Pretrain a model on shards, in one process or under torchrun.
  estimate   Print what a run needs on GPUs: memory, speed, hours, cost.
  evaluate   Measure the loss and accuracy of a run on a data set.
  finetune   Fine-tune a pretrained model into a text classifier.
  baseline   Train and test the bag-of-words baseline.
  benchmark  Fine-tune a pretrained model on several tasks, such as GLUE's.
  predict    Classify texts, files or standard input.
  fill       Fill in each [MASK] of the texts.
  export     Convert a run or a classifier for other libraries.
"""
# Slow to import, or not needed on a machine that only trains.
HEAVY = ("torch", "apache_beam", "nltk", "datasets", "webdataset", "transformers", "sklearn")
ASK_ALL_FOR_HELP = f"""
import sys
from click.testing import CliRunner
from clozeline.train.cli import main
for command in ([], *([name] for name in main.commands)):
    assert CliRunner().invoke(main, [*command, "--help"]).exit_code == 0
print(sorted(set({HEAVY}) & set(sys.modules)))
"""


def test_help_lists_the_commands_in_data_flow_order():
    result = CliRunner().invoke(main, ["--help"], prog_name="clozeline", terminal_width=80)
    assert result.output == HELP


def test_help_imports_nothing_heavy():
    assert python("-c", ASK_ALL_FOR_HELP) == "[]\n"


def test_the_version_is_the_packages_and_unknown_in_a_checkout_that_is_not_installed(monkeypatch):
    result = CliRunner().invoke(main, ["--version"], prog_name="clozeline")
    assert result.output == f"clozeline {importlib.metadata.version('clozeline')}\n"
    monkeypatch.setattr(importlib.metadata.Distribution, "discover", lambda **_: iter(()))
    assert own_version() == "unknown"


@pytest.fixture
def line(tmp_path):
    """A job whose data set is to be in `tmp_path / "out"`."""
    texts = articles(40)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts)
    source = write_parquet(tmp_path / "a.parquet", texts)
    return ("shards", source, "--tokenizer", tokenizer, "--out", tmp_path / "out")


def test_a_job_prints_one_line_and_its_progress_to_standard_error(line, tmp_path, capfd):
    done, out = invoke(*line, "--workers=1"), tmp_path / "out"
    rows = read_manifest(out).num_examples("train")
    assert done.stdout == f"{rows:,} training examples in 1 shard: {out}\n"
    note = (
        "note: these are `segments` pairs; the default preset of `clozeline pretrain`, nano, "
        "learns more from --pairs none."
    )
    follows = f"Next: clozeline pretrain {out} --out {tmp_path}/run"
    assert done.stderr.splitlines()[-2:] == [note, follows]
    said = capfd.readouterr().err  # what the process itself has for standard error
    assert "tokenizing: 100%" in said
    assert "2/2" in said
    assert "\r" not in said
    assert "INFO" not in said  # the log goes to job.log


def test_shards_know_the_pairs_of_the_default_preset(line):
    assert cli.DEFAULT_PRESET == DEFAULT_PRESET
    assert RECIPES[DEFAULT_PRESET]["pairs"].value == cli.ADVISED_PAIRS
    assert "note: these" not in invoke(*line, "--pairs", cli.ADVISED_PAIRS, "--workers=1").stderr


def test_a_job_whose_standard_streams_are_closed_is_built(line, tmp_path):
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.run([*closed, *COMMAND, *map(str, line)], cwd=ROOT).returncode == 0
    assert invoke("verify", tmp_path / "out").exit_code == 0


def test_a_user_error_is_one_line_and_exit_code_2(tmp_path):
    """A separate process prints and returns the same as a call in this one."""
    line = ("verify", tmp_path / "nothing")
    result = invoke(*line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {tmp_path}/nothing does not exist; check the path.\n"
    done = clozeline(*line)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", result.stderr)
    missing = invoke("shards", "no.txt")
    assert missing.exit_code == 2
    assert missing.stderr.endswith("\nError: Missing option '--tokenizer'.\n")
    assert "No such command 'shard'" in invoke("shard").stderr


@pytest.mark.parametrize("kept", ["The soup is kept.", ""])
@pytest.mark.parametrize("form", ["as it is", "as a cause", "lost"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_has_one_line_and_one_meaning(kept, form, number, monkeypatch):
    monkeypatch.setattr(signals, "_interrupts", [])

    def interrupted():
        with suppress(KeyboardInterrupt) if form == "lost" else nullcontext():
            try:
                signals.interrupt(number, None)
            except KeyboardInterrupt as cause:
                if form == "as a cause":
                    raise ValueError("a library's") from cause
                raise
        raise ValueError("a library's")

    command = Command("cook", callback=interrupted, example="cook", kept=kept)
    result = CliRunner().invoke(InOrder(commands={"cook": command}), ["cook"])
    assert result.exit_code == (STOPPED if kept else 128 + number)
    assert result.stderr == f"\nInterrupted. {kept}".rstrip(" ") + "\n"


def test_commands_that_keep_their_work_are_known_before_they_are_imported():
    kept = [name for name, command in main.commands.items() if getattr(command, "kept", "")]
    assert (*kept,) == RESUMABLE
    assert all("same command again" in main.commands[name].kept for name in kept)


@pytest.mark.parametrize(("name", "code"), [("shards", STOPPED), ("verify", 143)])
def test_sigterm_during_the_imports_means_the_same(name, code):
    program = (
        "import builtins, os, signal, sys\n"
        "real = builtins.__import__\n"
        "def stop(name, *rest):\n"
        "    if name == 'click':\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = stop\n"
        "from clozeline.__main__ import run\n"
        "run()\n"
    )
    line = [sys.executable, "-c", program, name]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    again = " Run the same command again." * (code == STOPPED)
    assert (done.returncode, done.stderr) == (code, f"\nInterrupted.{again}\n")


def test_an_interrupt_that_a_callback_swallows_comes_again():
    program = (
        "import os, signal, threading\n"
        "from clozeline.train.inference import fill as room\n"
        "class Callback:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "def fill(*given, top):\n"
        "    del [Callback()][0]\n"
        "    threading.Event().wait(60)\n"
        "room.fill = fill\n"
        "from clozeline.__main__ import run\n"
        "run()\n"
    )
    line = [sys.executable, "-c", program, "fill", ".", "[MASK]"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "\nInterrupted.\n")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_a_module_is_imported(kind):
    found = []

    def module():
        os.kill(os.getpid(), kind)
        found.append("module")

    def interrupt(number, _):
        raise KeyboardInterrupt(number)

    def run():
        load()
        threading.Event().wait(60)

    lines = "def load():\n    module()\n    found.append('loaded')"
    names = {"module": module, "found": found}
    exec(compile(lines, "<frozen importlib._bootstrap>", "exec"), names)
    load = names["load"]
    with pytest.raises(KeyboardInterrupt) as raised, handled([kind], interrupt):
        run()
    assert (raised.value.args, found) == ((kind,), ["module", "loaded"])


def help_of(name, *, columns=100, option="--help"):
    result = CliRunner().invoke(
        main, [name, option], prog_name="clozeline", env={"COLUMNS": str(columns)}
    )
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_an_example_that_it_takes(name):
    command, text = main.commands[name], help_of(name)
    assert text.startswith(f"Usage: clozeline {name} ")
    (summary,) = re.findall(rf"^  {name} +(.+)$", HELP, re.M)
    assert summary in text
    assert help_of(name, option="-h") == text
    assert text.endswith(f"Example:\n  {command.example}\n")
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert command.example.startswith(f"clozeline {name} ")
    for line in command.example.splitlines():
        parse(line)


@pytest.mark.parametrize("name", ["shards", "pretrain", "finetune"])
def test_the_short_help_of_a_long_command_has_fifteen_options_and_the_required_ones_first(name):
    command, text = main.commands[name], help_of(name)
    options_shown = text.partition("\nRequired:\n")[2]
    shown = re.findall(r"^  (?:-h, )?(--[a-z-]+)", options_shown, re.M)
    required = [x.opts[0] for x in command.params if x.required and x.opts[0].startswith("--")]
    assert shown[: len(required)] == required
    assert len(shown) == 15 + len({"--config", "--help-all", "--help"})
    every = help_of(name, option="--help-all")
    assert " ".join(every.split()).count("the preset's recipe") == (name == "pretrain")
    options = [x.opts[0] for x in command.params if isinstance(x, click.Option) and not x.hidden]
    assert all(re.search(rf"^  {option}\b", every, re.M) for option in options)
