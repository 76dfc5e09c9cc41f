"""Fine-tuning under torchrun: processes share the compared models, or one, and agree with one."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.classifier_folder import read_report
from clozeline.train.cli import main
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.compared_models import rounds
from clozeline.train.finetuning.results import ModelKey
from tests.support.files import contents
from tests.support.small_runs import write_small_run
from tests.support.two_processes import ROOT, TORCHRUN
from tests.train.test_finetune import MODEL, TOKENIZER, rows_classified, write_rows

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


@pytest.fixture
def command(tmp_path):
    """The beginning of a command line."""
    model = BertForPretraining(MODEL, seed=7)
    run = write_small_run(tmp_path / "run", model, TOKENIZER, max_seq_length=12)
    train = write_rows(tmp_path / "train.parquet", 60, seed=0)
    return [
        "finetune",
        str(run),
        train,
        "--test",
        write_rows(tmp_path / "test.parquet", 50, seed=1),
    ]


def test_two_processes_find_what_one_finds_if_both_see_the_folder(command, tmp_path):
    line = [*command, *OPTIONS, "--out"]
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


#: An epoch has two batches of eight rows and one of a single row; there is no dropout.
TOGETHER = (
    *("--max-examples", "17", "--class-weights", "balanced", "--no-baseline", "--dropout", "0"),
    *("--epochs", "2", "--batch-size", "8", "--precision", "fp32"),
)
#: Several commands; how many rows each of them trained on in this process is written to a file.
#: After each, no thread of the processes' group is left.
COMMANDS = """
import json, os, sys
from pathlib import Path
from clozeline.train.cli import main
from tests.train.test_finetune import rows_classified

for number, line in enumerate(json.loads(sys.argv[2])):
    with rows_classified(training=True) as rows:
        main(line, standalone_mode=False)
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in threads if "gloo" in name]
    Path(sys.argv[1], f"rows.{number}.{os.environ['RANK']}").write_text(str(sum(rows)))
"""
#: A command that is killed when it has stored its first result.
KILLED = """
import os, sys
from clozeline.train.cli import main
from clozeline.train.finetuning.results import ResultStore

write = ResultStore.write
ResultStore.write = lambda *result: (write(*result), os._exit(9))
main(sys.argv[1:])
"""


def test_three_processes_train_one_model_or_two_as_one_does(command, tmp_path):
    """In teams of three, and of two and one; from the beginning and after a process was killed."""
    line = [*command, *TOGETHER]
    compared = {
        "one": line,
        "two": [*line, "--from-scratch", "--seeds", "2", "--learning-rate", "1e-3"],
    }
    rows = []
    for name, options in compared.items():
        with rows_classified(training=True) as counted:
            alone = CliRunner().invoke(main, [*options, "--out", str(tmp_path / name)])
        assert alone.exit_code == 0, alone.output
        rows.append(sum(counted))
    kept = [*compared["two"], "--out", str(tmp_path / "two-killed")]
    killed = subprocess.run([sys.executable, "-c", KILLED, *kept], cwd=ROOT, capture_output=True)
    assert killed.returncode == 9, killed.stderr
    lines = [[*options, "--out", str(tmp_path / f"{n}-3")] for n, options in compared.items()]
    (tmp_path / "commands.py").write_text(COMMANDS)
    given = [str(tmp_path), json.dumps([*lines, [*kept, "--resume"]])]
    three = subprocess.run(
        [*TORCHRUN[:-1], "--nproc-per-node=3", str(tmp_path / "commands.py"), *given],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert three.returncode == 0, three.stderr
    trained = re.findall(r"[-a-z ]+, 17 rows, seed \d: accuracy", three.stderr)
    assert len(trained) == 1 + 2 * 2 + 3
    for number, wanted in enumerate(rows):  # each row once, by one of them; each has some
        shares = [int((tmp_path / f"rows.{number}.{rank}").read_text()) for rank in range(3)]
        assert sum(shares) == wanted
        assert min(shares) > 0
    for name, wanted in (("one-3", "one"), ("two-3", "two"), ("two-killed", "two")):
        found, others = load_classifier(tmp_path / name), load_classifier(tmp_path / wanted)
        weights = dict(others.model.named_parameters())
        for key, value in found.model.named_parameters():
            assert (value - weights[key]).norm() <= 1e-3 * weights[key].norm() + 1e-6, key
        reports = [read_report(tmp_path / n) for n in (name, wanted)]
        assert reports[0]["label_efficiency"] == reports[1]["label_efficiency"]
        losses = [[r["selection"]["held_out"]["loss"] for r in x["results"]] for x in reports]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        assert max(losses[0]) > 0


SOME_KEYS = st.lists(
    st.builds(
        ModelKey,
        start=st.sampled_from(["bag_of_words", "from_scratch", "pretrained"]),
        examples=st.sampled_from([100, 1000, 10000]),
        seed=st.integers(5, 8),
    ),
    unique=True,
)


@given(SOME_KEYS, st.integers(1, 9))
def test_rounds_have_models_alike_and_other_seeds_follow_the_first(keys, processes):
    found = rounds(keys, processes, first_seed=5)
    assert sorted((key for models in found for key in models), key=keys.index) == keys
    assert all(1 <= len(models) <= processes for models in found)
    for models in found:
        bags = {key.start == "bag_of_words" for key in models}
        assert len(bags) == 1
        assert bags == {True} or len({key.examples for key in models}) == 1
    place = {key: at for at, models in enumerate(found) for key in models}
    for key in keys:
        first = replace(key, seed=5)
        if key.start != "bag_of_words" and key != first and first in place:
            assert place[first] < place[key]


def test_rounds_are_as_large_as_they_can_be():
    kinds = [("bag_of_words", 10, 0), ("bag_of_words", 20, 0)]
    kinds += [("pretrained", n, seed) for n in (10, 20) for seed in range(3)]
    keys = [ModelKey(start=s, examples=n, seed=seed) for s, n, seed in kinds]
    names = [[key.name for key in models] for models in rounds(keys, 2, first_seed=0)]
    assert names == [
        ["bag_of_words-10-0", "bag_of_words-20-0"],
        ["pretrained-10-0"],
        ["pretrained-10-1", "pretrained-10-2"],
        ["pretrained-20-0"],
        ["pretrained-20-1", "pretrained-20-2"],
    ]
