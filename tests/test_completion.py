"""Completion, through the protocol between click and a shell."""

import subprocess
import sys

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from clozeline.model.config import PRESETS
from clozeline.train.cli import main
from tests.support.small_jobs import ROOT


def completed(*words):
    """What bash is offered for the last word, as "type,value"."""
    bash = BashComplete(main, {}, "clozeline", "_CLOZELINE_COMPLETE")
    *args, incomplete = words
    return [bash.format_completion(item) for item in bash.get_completions(args, incomplete)]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pretrain", "--preset", "modern-s"], ["plain,modern-small"]),
        (["pretrain", "--preset", ""], [f"plain,{name}" for name in PRESETS]),
        (["shards", "--pairs", "s"], ["plain,segments", "plain,sentences"]),
        (["pretrain", "--learn"], ["plain,--learning-rate"]),
        (["pre"], ["plain,pretrain", "plain,predict"]),
        (["completion", ""], ["plain,bash", "plain,zsh", "plain,fish"]),
        (["inspect", "wor"], ["file,wor"]),
        (["pretrain", "work/shards", "--out", "wor"], ["file,wor"]),
        (["pretrain", "--config", "wor"], ["file,wor"]),
    ],
)
def test_commands_options_choices_presets_and_paths_are_offered(words, offered):
    assert sorted(completed(*words)) == sorted(offered)


def test_a_shell_gets_its_answer_from_the_command_itself():
    asked = {"_CLOZELINE_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "clozeline"],
        env={"COMP_WORDS": "clozeline pretrain --preset bert-m", "PYTHONPATH": str(ROOT), **asked},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["plain,bert-mini", "plain,bert-medium"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_this_command(shell):
    script = CliRunner().invoke(main, ["completion", shell]).output
    assert f"_CLOZELINE_COMPLETE={shell}_complete" in script
    assert "clozeline" in script
