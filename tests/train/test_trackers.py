"""Tracked runs, offline: W&B's files and MLflow's file store."""

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.checkpoint import list_checkpoints
from clozeline.train.artifacts.run import TRACKERS, remove_run
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.monitoring.trackers import open_tracker, scalars
from tests.support.small_data import write_data_set
from tests.support.small_training import go_back, train

needs = {
    name: pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"pip install 'clozeline[{name}]'"
    )
    for name in ("wandb", "mlflow")
}


def test_scalars_have_the_names_that_people_expect():
    line = {"mlm_loss": 6.0, "nsp_loss": 0.5, "learning_rate": 1e-3, "tokens_per_second": 9}
    assert scalars({**line, "data_digest": "ab"}) == {
        "train/mlm_loss": 6.0, "train/nsp_loss": 0.5, "train/loss": 6.5,
        "train/learning_rate": 1e-3, "train/tokens_per_second": 9.0,
    }  # fmt: skip
    assert scalars({"heldout/mlm_loss": 5.0}) == {"heldout/mlm_loss": 5.0, "heldout/loss": 5.0}


def resumed(tmp_path, track):
    """The run, trained to step 8 and then from step 4 to step 12; the id of each process."""
    shards, ids = write_data_set(tmp_path / "shards", train=(40,), validation=(8,)), []
    run = tmp_path / "run"
    for steps in (8, 12):
        go_back(run, 4) if run.exists() else None
        train(shards, run, resume=run.exists(), max_steps=steps, schedule="constant", track=track)
        ids.append(json.loads((run / TRACKERS).read_bytes())[track])
    return run, ids


class Wandb(ModuleType):
    """What of W&B is called, where it is not installed: each call of `init`, each line of a log."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.begun, self.lines, self.ended = [], [], 0

    def init(self, **options):
        self.begun.append(options)
        self.id = options["id"] or "first"
        return self

    def log(self, scalars, step):
        self.lines.append((step, scalars))

    def finish(self, exit_code):
        assert exit_code == 0
        self.ended += 1


def test_a_resumed_run_asks_wandb_for_the_same_run(tmp_path, monkeypatch):
    """As test-all does with the package itself, below."""
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run, ids = resumed(tmp_path, "wandb")
    assert ids == ["first", "first"]
    assert [(call["id"], call["resume"]) for call in wandb.begun] == [
        (None, "allow"),
        ("first", "allow"),
    ]
    assert {call["dir"] for call in wandb.begun} == {str(run)}
    assert wandb.begun[0]["config"]["schedule"] == "constant"
    trained = [step for step, line in wandb.lines if "train/loss" in line]
    assert trained == [*range(1, 9), *range(5, 13)]
    assert any("heldout/loss" in line for _, line in wandb.lines)
    assert wandb.ended == 2


def test_a_tracker_that_fails_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    class Failing(Wandb):
        def log(self, scalars, step):
            raise ConnectionError("the server is gone")

    monkeypatch.setitem(sys.modules, "wandb", Failing())
    shards = write_data_set(tmp_path / "shards", train=(40,), validation=(8,))
    train(shards, tmp_path / "run", track="wandb")
    assert (tmp_path / "run" / "summary.json").exists()
    said = [line for line in capsys.readouterr().err.splitlines() if "--track" in line]
    assert said == ["warning: --track: the server is gone; this run is not tracked from here on."]


@needs["mlflow"]
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_continues_in_the_same_run_of_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    run, ids = resumed(tmp_path, "mlflow")
    assert ids[0] == ids[1]
    found = MlflowClient(f"file:{tmp_path}/mlruns").get_run(ids[0])
    assert found.info.status == "FINISHED"
    assert found.data.params["schedule"] == "constant"
    last = [line for line in read_metrics(run) if "mlm_loss" in line][-1]
    assert found.data.metrics["train/loss"] == pytest.approx(last["mlm_loss"] + last["nsp_loss"])
    assert "heldout/loss" in found.data.metrics
    history = MlflowClient().get_metric_history(ids[0], "train/learning_rate")
    assert {metric.step for metric in history} == set(range(1, 13))
    remove_run(run)
    assert not run.exists() or not (run / TRACKERS).exists()


def test_a_tracker_that_refuses_is_one_line(tmp_path, monkeypatch):
    def init(**_):
        raise RuntimeError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    refusal = r"--track wandb does not start: No API key configured\. Use `wandb login`"
    with pytest.raises(InputError, match=refusal):
        open_tracker("wandb", tmp_path, {}, is_new=True)


def test_a_tracker_that_refuses_leaves_the_old_run_and_one_that_starts_forgets_it(
    tmp_path, monkeypatch
):
    shards, run = write_data_set(tmp_path / "shards", train=(40,)), tmp_path / "run"
    monkeypatch.setitem(sys.modules, "wandb", Wandb())
    train(shards, run, track="wandb")
    (run / TRACKERS).write_text(json.dumps({"wandb": "the old one", "mlflow": "and its other"}))

    def init(**_):
        raise RuntimeError("No API key configured.")

    with monkeypatch.context() as refusing:
        refusing.setitem(
            sys.modules, "wandb", SimpleNamespace(init=init, __spec__=ModuleSpec("wandb", None))
        )
        with pytest.raises(InputError, match="does not start"):
            train(shards, run, overwrite=True, max_steps=4, track="wandb")
    assert (run / "summary.json").exists()
    assert len(list_checkpoints(run)) == 3
    train(shards, run, overwrite=True, max_steps=4, track="wandb")
    assert len(list_checkpoints(run)) == 1
    assert json.loads((run / TRACKERS).read_bytes()) == {"wandb": "first"}


@needs["wandb"]
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_continues_in_the_same_run_of_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run, ids = resumed(tmp_path, "wandb")
    assert ids[0] == ids[1]
    files = list((run / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert {path.stem for path in files} == {f"run-{ids[0]}"}
    assert all(b"train/loss" in path.read_bytes() for path in files)
