"""`--profile` writes a trace and a table, and changes nothing of the training."""

import json
from dataclasses import replace

from clozeline.train.pretraining.pretrain import pretrain
from tests.support.small_training import SHORT, TINY, assert_same_run, train, weights


def test_some_steps_are_profiled(small_folder, tmp_path):
    train(small_folder, tmp_path / "plain", max_steps=6)
    training = replace(SHORT, max_steps=6)
    run = tmp_path / "run"
    pretrain(small_folder, out=run, model=TINY, training=training, profile=2)
    assert_same_run(run, tmp_path / "plain")
    trace = json.loads((run / "profile" / "trace.json").read_text())
    steps = {e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#3", "ProfilerStep#4"}
    lines = (run / "profile" / "operations.txt").read_text().splitlines()
    table = [line for line in lines if "aten::" in line or "Optimizer" in line]
    assert 5 <= len(table) <= 10
    before = weights(run)
    train(small_folder, run, overwrite=True, max_steps=6)
    assert weights(run) == before
    assert not (run / "profile").exists()
