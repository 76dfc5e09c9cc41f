"""The command line: help, version, options for Beam, errors."""

import importlib.metadata
import json
import re

import click
import pytest
from click.testing import CliRunner

from clozeline.pipeline.commandline.command import Command, group_of
from clozeline.pipeline.common.packages import own_version
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.cli import main
from tests.support.small_jobs import articles, clozeline, python, write_parquet, write_tokenizer
from tests.test_docs import parse

COMMANDS = list(main.commands)
HELP = """\
Usage: clozeline [OPTIONS] COMMAND [ARGS]...

  Pretrain BERT from raw text, then fine-tune it.

  The commands are listed in data-flow order.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  tokenizer   Learn or adopt a vocabulary and a sentence splitter.
  shards      Build shards of masked examples from text.
  inspect     Show random examples in readable form.
  verify      Check every byte and every example of a data set.
  report      Write the pages of `clozeline view` to one HTML file.
  view        Browse a data set, runs and a classifier in a web browser.
  pretrain    Pretrain a model on shards, in one process or under torchrun.
  average     Average the weights of the last checkpoints of a run.
  evaluate    Measure the loss and accuracy of a run on a data set.
  finetune    Fine-tune a pretrained model into a text classifier.
  baseline    Train and test the bag-of-words baseline.
  benchmark   Fine-tune a pretrained model on several tasks, such as GLUE's.
  predict     Classify texts, files or standard input.
  serve       Answer requests for a classifier over HTTP.
  fill        Fill in each [MASK] of the texts.
  export      Convert a run or a classifier for other libraries.
  completion  Print a script that completes commands, options and presets.
"""
FN_API = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    result = CliRunner().invoke(main, [name, "--help"], prog_name="clozeline")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: clozeline {name} ")
    summaries = [line.strip() for line in HELP.splitlines() if line.startswith(f"  {name} ")]
    assert summaries[0].removeprefix(name).strip() in result.output
    assert CliRunner().invoke(main, [name, "-h"], prog_name="clozeline").output == result.output


def test_every_option_has_a_help_text():
    undocumented = [
        f"{name} {option.opts[0]}"
        for name, command in main.commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert undocumented == []


def test_help_imports_nothing_heavy():
    assert python("-c", ASK_ALL_FOR_HELP) == "[]\n"


def test_the_version_is_the_packages():
    done = clozeline("--version")
    assert done.stdout == f"clozeline {importlib.metadata.version('clozeline')}\n"


def test_a_checkout_that_is_not_installed_has_an_unknown_version(monkeypatch):
    assert own_version() == importlib.metadata.version("clozeline")
    monkeypatch.setattr(importlib.metadata.Distribution, "discover", lambda **_: iter(()))
    assert own_version() == "unknown"


def test_options_after_two_dashes_go_to_beam_and_only_to_beam(tmp_path):
    texts = articles(40)
    source, out = write_parquet(tmp_path / "a.parquet", texts), tmp_path / "out"
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts)
    ours = ("shards", source, "--tokenizer", tokenizer, "--out", out, "--seed=1")
    beams = [f"--runner={FN_API}", "--direct_running_mode=in_memory", "--job_name=runs"]
    result = CliRunner().invoke(main, [str(part) for part in (*ours, "--", *beams)])
    assert result.exit_code == 0, result.output
    assert json.loads((out / "job.json").read_bytes())["beam_args"] == beams
    assert read_manifest(out).config.seed == 1
    # They are spelled like our options, but after the dashes only Beam reads them.
    line = (*ours, "--overwrite", "--", *beams, "--seed=2", "--pairs=none")
    result = CliRunner().invoke(main, [str(part) for part in line])
    assert result.exit_code == 2
    assert "neither Beam nor the runner knows --seed=2 --pairs=none;" in result.output


def test_a_job_prints_one_line_and_its_progress_to_standard_error(tmp_path):
    texts = articles(40)
    source, out = write_parquet(tmp_path / "a.parquet", texts), tmp_path / "out"
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts)
    done = clozeline("shards", source, "--tokenizer", tokenizer, "--out", out, "--workers=1")
    rows = read_manifest(out).num_examples("train")
    assert done.stdout == f"{rows:,} training examples in 1 shard: {out}\n"
    assert "tokenizing: 100%" in done.stderr
    assert "\r" not in done.stderr
    assert done.stderr.endswith(f"Next: clozeline pretrain {out} --out {tmp_path}/run\n")
    assert "2/2" in done.stderr
    assert "INFO" not in done.stderr  # Beam's log goes to job.log


def test_a_user_error_is_one_line_and_exit_code_2(tmp_path):
    for line in (
        ("shards", "no.txt", "--tokenizer", tmp_path, "--out", tmp_path / "out"),
        ("verify", tmp_path / "nothing"),
        ("pretrain", tmp_path / "nothing", "--out", tmp_path / "run"),
        ("predict", tmp_path / "nothing", "a text"),
    ):
        result = CliRunner().invoke(main, [str(word) for word in line])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
    done = clozeline(*line)  # the last one, as a process
    assert (done.returncode, done.stdout, done.stderr) == (2, "", result.stderr)
    missing = CliRunner().invoke(main, ["shards", "no.txt"])
    assert missing.exit_code == 2
    assert missing.stderr.endswith("\nError: Missing option '--tokenizer'.\n")
    assert "No such command 'shard'" in CliRunner().invoke(main, ["shard"]).stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ImportError("a library's")])
def test_an_interrupted_command_says_what_is_kept(error):
    def interrupted():
        raise error from KeyboardInterrupt()

    command = Command("cook", callback=interrupted, example="cook", kept="The soup is kept.")
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 1
    assert "\nInterrupted. The soup is kept.\n" in result.stderr
    assert "same command again" in main.commands["shards"].kept
    assert "--resume" in main.commands["finetune"].kept


# Help: options in groups, aligned, an example that the command takes


def help_of(name, *, columns=100):
    result = CliRunner().invoke(main, [name, "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_options_stand_in_groups_of_which_the_last_are_output_and_general(name):
    command = main.commands[name]
    assert isinstance(command, Command)
    headings = re.findall(r"^([A-Z][\w -]+):$", help_of(name), re.M)
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert {group_of(option) for option in options} | {"General"} == set(headings) - {"Example"}
    assert "Options" not in headings
    assert headings[-2:] == ["General", "Example"]
    assert headings.index("Output") == len(headings) - 3 if "Output" in headings else True


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("columns", [80, 200])
def test_lines_are_short_and_descriptions_begin_in_one_column(name, columns):
    text = help_of(name, columns=columns)
    assert max(map(len, text.splitlines())) <= 100
    rows = re.findall(r"^  (--?[a-z][^\n]*?  +)\S", text, re.M)
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_is_one_that_the_command_takes(name):
    example = main.commands[name].example
    assert help_of(name).endswith(f"Example:\n  {example}\n")
    assert example.startswith(f"clozeline {name} ")
    for line in example.splitlines():
        parse(line)
