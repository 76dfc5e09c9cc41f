"""Options and commands that were removed end in one line that says what to use instead."""

import pytest
from click.testing import CliRunner

from clozeline.pipeline.commandline.removed_options import COMMANDS, EVERY, OPTIONS
from clozeline.train.cli import main

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


def test_an_option_that_never_was_is_reported_as_before():
    assert error_line("fill", "--ngrams") == "Error: No such option '--ngrams'."
    assert error_line("fil") == "Error: No such command 'fil'. Did you mean 'fill'?"
