"""Help: options in groups, aligned, an example that the command takes."""

import re

import click
import pytest
from click.testing import CliRunner

from clozeline.pipeline.commandline.command import Command, group_of
from clozeline.train.cli import main
from tests.test_docs import parse

COMMANDS = list(main.commands)


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
