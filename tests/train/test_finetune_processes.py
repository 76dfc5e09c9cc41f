"""Fine-tuning under torchrun: the processes share the rows of each step, and agree with one."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.classifier_folder import read_report
from clozeline.train.cli import main
from clozeline.train.finetuning.classifier import load_classifier
from tests.support.small_runs import write_small_run
from tests.support.two_processes import ROOT, TORCHRUN
from tests.train.test_finetune import MODEL, TOKENIZER, rows_classified, write_rows


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
from clozeline.train.finetuning.results import ResultFolder

write = ResultFolder.write
ResultFolder.write = lambda *result: (write(*result), os._exit(9))
main(sys.argv[1:])
"""


def test_three_processes_train_each_model_as_one_does(command, tmp_path):
    """From the beginning, and after a process was killed."""
    line = [*command, *TOGETHER]
    compared = {
        "one": line,
        "two": [*line, "--from-scratch", "--seeds", "2", "--learning-rate", "1e-3", "--baseline"],
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
    assert len(trained) == 1 + 5 + 4
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
        losses = [[r["trial"]["loss"] for r in x["results"] if r["trial"]] for x in reports]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        assert max(losses[0]) > 0
