"""Fine-tuning under torchrun: two processes share the compared models and agree with one."""

import os
import re
import subprocess

import pytest
import torch
from click.testing import CliRunner

from clozeline.model.heads import BertForPretraining
from clozeline.train.cli import main
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.compared_models import share_of
from clozeline.train.finetuning.results import ModelKey
from tests.support.files import contents
from tests.support.small_runs import write_small_run
from tests.support.two_processes import ROOT, TORCHRUN
from tests.test_finetune import MODEL, TOKENIZER, write_rows

#: The first seed searches the learning rate for both.
OPTIONS = (
    *("--from-scratch", "--max-examples", "16", "--seeds", "2"),
    *("--epochs", "1", "--batch-size", "16", "--precision", "fp32"),
)
#: A folder that both processes see, one that is each process's own, and then a command.
JOB = """
import os, sys
from pathlib import Path
from clozeline.pipeline.common.errors import InputError
from clozeline.train.cli import main
from clozeline.train.engine.distributed import join_world
from clozeline.train.finetuning.results import ResultStore

folder, *line = sys.argv[1:]
with join_world() as world:
    for name in ("shared", os.environ["RANK"]):
        store = ResultStore(Path(folder) / name, {}, resume=False)
        world.any(False)  # a new store empties its folder
        try:
            store.check_shared(world)
        except (InputError, SystemExit) as refusal:
            told = f"{name}: {type(refusal).__name__} {refusal}"
            Path(folder, f"refused.{name}.{world.rank}").write_text(told)
main(line, standalone_mode=False)
"""


def test_two_processes_find_what_one_finds_if_both_see_the_folder(tmp_path):
    model = BertForPretraining(MODEL, seed=7)
    run = write_small_run(tmp_path / "run", model, TOKENIZER, max_seq_length=12)
    train = write_rows(tmp_path / "train.parquet", 60, seed=0)
    test = write_rows(tmp_path / "test.parquet", 50, seed=1)
    line = ["finetune", str(run), train, "--test", test, *OPTIONS, "--out"]
    one, two, job = tmp_path / "one", tmp_path / "two", tmp_path / "job.py"

    alone = CliRunner().invoke(main, [*line, str(one)])
    assert alone.exit_code == 0, alone.output
    job.write_text(JOB)
    both = subprocess.run(
        [*TORCHRUN, str(job), str(tmp_path), *line, str(two)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert both.returncode == 0, both.stderr
    assert contents(two) == contents(one)  # weights and report
    assert both.stdout == alone.stdout.replace(str(one), str(two))  # only one of them prints
    trained = re.findall(r"([-a-z ]+), (\d+) rows, seed (\d): accuracy", both.stderr)
    assert len(trained) == len(set(trained)) == 2 * 2 + 1  # bag-of-words has one

    refused = [(tmp_path / f"refused.{rank}.{rank}").read_text() for rank in (0, 1)]
    assert len(list(tmp_path.glob("refused.*"))) == 2  # the shared folder is not
    assert refused[0].startswith(
        f"0: InputError not every process sees {tmp_path / '0'}; give --out a folder of a f"
    )
    assert refused[1] == "1: SystemExit 2"


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_each_model_has_one_process_and_the_largest_have_different_ones(size):
    keys = [
        ModelKey(start=start, examples=examples, seed=0)
        for examples in (100, 1000, 10000)
        for start in ("bag_of_words", "from_scratch", "pretrained")
    ]
    shares = [share_of(keys, World(rank, size, torch.device("cpu"))) for rank in range(size)]
    assert sorted((key for share in shares for key in share), key=keys.index) == keys
    assert all(share == sorted(share, key=keys.index) for share in shares)
    assert {share[-1] for share in shares} == set(keys[-size:])
