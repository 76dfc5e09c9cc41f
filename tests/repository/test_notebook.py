"""The notebook in examples/: stored without outputs, and run from its first cell to its last."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.repository.test_docs import parse

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_model.ipynb"


def test_it_is_short_and_has_no_output_that_may_be_out_of_date():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert 8 <= len(cells) <= 12
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_its_commands_are_taken():
    """With {folder} for each folder."""
    code = "".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
    commands = re.findall(r'^ *clozeline\(f"+(.+?)"+\n?\)', code, re.M | re.S)
    assert [command.split()[0] for command in commands] == [
        "tokenizer", "shards", "pretrain", "finetune",
    ]  # fmt: skip
    for command in commands:
        parse(f"clozeline {command}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's libraries
def test_it_runs_from_text_to_a_classifier_and_draws_the_curve(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, startup_timeout=200, resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    report = json.loads((tmp_path / "work/notebook/classifier/report.json").read_text())
    assert report["finetuned"]["accuracy"] > 0.6
    said = "".join(output.get("text", "") for output in outputs)
    assert "[MASK]" in said, "a row of a batch"
    assert "%" in notebook.cells[-1].outputs[0].text
