"""A wrong path is one line: what it is and what is wanted."""

import pytest

from clozeline.pipeline.common.folder_kind import what_is, wrong_folder
from tests.support.command import invoke


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["train-00000-of-00006.parquet", "b.parquet"], "a folder of Parquet files"),
        (["a.jsonl", "b.jsonl", "README.md"], "a folder of JSON lines files"),
        (["a.txt"], "a folder of text files"),
        (["a.txt", "b.csv"], "a folder of other files (a.txt, b.csv)"),
        (["a", "b", "c", "d"], "a folder of other files (a, b, c, ...)"),
        (["a", "b.csv", "c.txt", "d.jsonl"], "a folder of other files (a, b.csv, c.txt, ...)"),
        ([], "an empty folder"),
        (["run.json", "a.txt"], "a run of `clozeline pretrain`"),
        (["classifier.json", "tokenizer.json"], "a classifier of `clozeline finetune`"),
        (["tokenizer.json", "vocab.txt"], "a tokenizer folder"),
    ],
)
def test_a_folder_is_named_after_what_is_in_it(tmp_path, names, kind):
    for name in names:
        (tmp_path / name).touch()
    assert what_is(tmp_path) == kind
    assert str(wrong_folder(tmp_path, "a run")) == f"{tmp_path} is {kind}; give a run."


@pytest.mark.parametrize(
    "line",
    [
        ("inspect", "{}"), ("verify", "{}"), ("report", "{}"), ("view", "{}"), ("fill", "{}", "a"),
        ("pretrain", "{}", "--out", "{}/run"), ("evaluate", "{}", "{}"), ("predict", "{}", "a"),
        ("export", "{}", "--out", "{}/e"), ("finetune", "{}", "a.csv", "--out", "{}-c"),
    ],
)  # fmt: skip
def test_every_command_has_the_same_line(tmp_path, line):
    def said(folder):
        result = invoke(*(word.format(folder) for word in line))
        assert result.exit_code == 2, result.output
        return result.output

    nowhere = tmp_path / "nowhere"
    assert said(nowhere) == f"Error: {nowhere} does not exist; check the path.\n"
    (tmp_path / "a.parquet").touch()
    assert said(tmp_path).startswith(f"Error: {tmp_path} is a folder of Parquet files; give ")
