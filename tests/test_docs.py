"""The README says what is so: its commands, options, targets, files and columns exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

from pipeline.dataset.schema import example_schema
from train.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
CODE = [
    line for block in re.findall(r"```\n(.*?)```", README, re.DOTALL) for line in block.split("\n")
]
COMMANDS = [line for line in CODE if re.match(r"(\.venv/bin/)?clozeline |torchrun ", line)]


def parse(line: str) -> click.Context:
    """The context of a command line, parsed and not run."""
    words = shlex.split(line.partition(" -- ")[0])
    words = words[words.index("train") + 1 :] if "torchrun" in words[0] else words[1:]
    command = main.commands[words[0]]
    return command.make_context(words[0], words[1:])


def test_there_is_something_to_test():
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_line_is_one_that_clozeline_takes(line):
    parse(line)


def test_every_command_has_its_place_in_the_readme():
    assert {name for name in main.commands if f"clozeline {name}" not in README} <= {
        "evaluate",
        "baseline",
        "fill",
        "verify",
        "pretrain",
    }


def test_every_make_target_that_is_named_exists():
    named = set(re.findall(r"`make ([a-z-]+)", README)) | set(
        re.findall(r"^make ([a-z-]+)", README, re.M)
    )
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
    assert named >= {"demo", "check", "bench", "help"}
    assert named <= targets


def test_every_make_target_explains_itself():
    phony = {
        name for line in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M) for name in line.split()
    }
    explained = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.M))
    assert phony == explained


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"`((?:tests|pipeline|model|train)/[\w/.]+\.py)`", README))
    assert len(named) >= 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_module_stands_in_the_tree_of_files():
    tree = README[README.index("## Files") : README.index("## What differs")]
    words = set(re.findall(r"[\w]+", tree))
    for path in (*ROOT.glob("pipeline/*.py"), *ROOT.glob("model/*.py"), *ROOT.glob("train/*.py")):
        name = path.stem
        assert name in words or name.startswith(("__", "sample")), f"{path} is not in the README"


def test_the_columns_are_those_of_the_schema():
    table = README[
        README.index("## What a shard holds") : README.index("`clozeline inspect` shows")
    ]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == example_schema(100, "").names


def test_no_number_was_left_to_be_filled_in():
    assert "@@" not in README
