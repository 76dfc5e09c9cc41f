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
    *("--label-efficiency", "8,16", "--max-examples", "16", "--seeds", "2"),
    *("--epochs", "1", "--batch-size", "16", "--precision", "fp32"),
)


def test_two_processes_find_what_one_finds(tmp_path):
    model = BertForPretraining(MODEL, seed=7)
    run = write_small_run(tmp_path / "run", model, TOKENIZER, max_seq_length=12)
    train = write_rows(tmp_path / "train.parquet", 60, seed=0)
    test = write_rows(tmp_path / "test.parquet", 50, seed=1)
    line = ["finetune", str(run), train, "--test", test, *OPTIONS, "--out"]
    one, two = tmp_path / "one", tmp_path / "two"

    alone = CliRunner().invoke(main, [*line, str(one)])
    assert alone.exit_code == 0, alone.output
    both = subprocess.run(
        [*TORCHRUN, "-m", "clozeline", *line, str(two)], cwd=ROOT, capture_output=True, text=True
    )
    assert both.returncode == 0, both.stderr
    assert contents(two) == contents(one)  # weights, report, figure
    assert both.stdout == alone.stdout.replace(str(one), str(two))  # only one of them prints
    trained = re.findall(r"([-a-z ]+), (\d+) rows, seed (\d): accuracy", both.stderr)
    assert len(trained) == len(set(trained)) == 2 * 2 * 2 + 2 + 1  # bag-of-words has one of 16


def test_a_folder_that_not_all_processes_see_is_refused_before_training(tmp_path):
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from clozeline.train.engine.distributed import join_world\n"
        "from clozeline.train.finetuning.results import ResultStore\n"
        "with join_world() as world:\n"
        "    for name in ('shared', os.environ['RANK']):\n"
        "        store = ResultStore(Path(sys.argv[1]) / name, {}, resume=False, overwrite=False)\n"
        "        world.any(False)  # a new store empties its folder\n"
        "        store.check_shared(world)\n"
        "        sys.stdout.write(name + ' is shared\\n')\n"  # in one piece: two processes print
        "        sys.stdout.flush()\n"
    )
    (tmp_path / "job.py").write_text(code)
    both = subprocess.run(
        [*TORCHRUN, str(tmp_path / "job.py"), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert both.returncode != 0
    assert both.stdout.count("shared is shared\n") == 2
    assert both.stdout.count("is shared") == 2
    assert f"not every process sees {tmp_path / '0'}; give --out a folder of a f" in both.stderr


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
