"""Files of our own that hold other JSON than we wrote: one line and exit code 2, no traceback."""

import shutil

import pytest

from clozeline.model.heads import BertForPretraining
from tests.support.command import invoke
from tests.support.small import small_tokenizer
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY


@pytest.fixture(scope="module")
def folders(small_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    model = BertForPretraining(TINY)
    write_small_run(folder / "run", model, small_tokenizer(), max_seq_length=16)
    shutil.copytree(small_folder, folder / "data")
    return folder


@pytest.mark.parametrize(
    "content", ["[" * 200_000, "[]", "null", "7", '{"model": {"wheels": 4}}', "{}", "{", "\xff", ""]
)
@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [
        ("data", "manifest.json", ("inspect",)),
        ("data", "manifest.json", ("report",)),
        ("run", "run.json", ("report",)),
        ("run", "run.json", ("fill", "a [MASK]")),
        ("run", "summary.json", ("export",)),
    ],
)
def test_other_json_is_refused_in_one_line(kind, name, command, content, folders, tmp_path):
    folder = shutil.copytree(folders / kind, tmp_path / kind)
    (folder / name).write_text(content)
    verb, *rest = command
    out = ("--out", tmp_path / "out") if verb == "export" else ()
    result = invoke(verb, folder, *rest, *out)
    assert result.exit_code == 2, result.exception
    assert isinstance(result.exception, SystemExit)
    [line] = result.stderr.splitlines()
    assert line.startswith(f"Error: {folder / name} cannot be read (")


def test_a_job_file_that_is_nested_too_deep_is_refused_in_one_line(folders, tmp_path):
    folder = shutil.copytree(folders / "data", tmp_path / "data")
    (folder / "job.json").write_text("[" * 200_000)
    result = invoke("report", folder)
    assert result.exit_code == 2
    assert f"{folder / 'job.json'} cannot be read (" in result.stderr
