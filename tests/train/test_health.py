"""Warnings where a fault was planted and none on a sound run; trackers get the same lines."""

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.checkpoint import list_checkpoints
from clozeline.train.artifacts.run import TRACKERS, remove_run
from clozeline.train.monitoring.health import find_warnings
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.monitoring.trackers import open_tracker, scalars
from tests.support.small_data import write_data_set
from tests.support.small_training import go_back, train

UNIGRAM, BATCH, STEPS, EVERY = 7.0, 64, 1000, 10
Change = Callable[[int], dict[str, Any]]  # what the line of a step has instead


def sound_line(step):
    """A line as of a run that learns, with the noise of single batches."""
    noise = math.sin(12.9 * step)
    return {
        "step": step,
        "mlm_loss": 4.5 + 2.8 * math.exp(-step / 250) + 0.12 * noise,
        "nsp_loss": 0.6,
        "nsp_pairs": BATCH,
        "nsp_accuracy": 0.5 + 0.3 * (1 - math.exp(-step / 200)) + 0.05 * noise,
        "learning_rate": 1e-3 * min(step / 60, (STEPS - step) / (STEPS - 60)),
        "gradient_norm": 2.0 + noise,
        "data_wait": 0.6 if step == 1 else 0.002,
    }


def lines(change=lambda step: {}, *, until=STEPS):
    """The first line has the unigram's loss."""
    found = [sound_line(s) | change(s) for s in (1, *range(EVERY, until + 1, EVERY))]
    return [found[0] | {"unigram_loss": UNIGRAM}, *found[1:]]


def warnings_of(found, total_steps=STEPS):
    return find_warnings(list(found), total_steps=total_steps)


def heldout(step, loss):
    return {"step": step, "heldout/mlm_loss": loss}


def after(start, **values):
    return lambda step: values if step >= start else {}


def only_at(when, **values):
    return lambda step: values if step == when else {}


def noisy(level, name="mlm_loss"):
    return lambda step: {name: level + 0.05 * math.sin(12.9 * step)}


FAULTS: dict[str, tuple[Change, int, str]] = {  # cause: fault, step it is told, words
    "loss_spike": (only_at(500, mlm_loss=7.2), 500, "jumped to 7.200 from about 5.101"),
    "diverging": (lambda s: {"mlm_loss": 7.3 + s / 250}, 120, "above the 7.304 it started from"),
    "not_falling": (noisy(9.2), 190, "it does not fall"),
    "parked_at_unigram": (noisy(UNIGRAM), 200, "counting tokens alone gives 7.000"),
    "nsp_at_chance": (noisy(0.5, "nsp_accuracy"), 300, "which is guessing"),
    "nsp_too_easy": (after(300, nsp_accuracy=1.0), 490, "100.0% over 1,280 pairs"),
    "slow_loader": (after(500, data_wait=0.23), 520, "23% of the time the model waits"),
}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_planted_fault_is_told_once_with_its_number_and_what_to_do(cause):
    change, step, words = FAULTS[cause]
    found = [warning for warning in warnings_of(lines(change)) if warning.cause == cause]
    assert [warning.step for warning in found] == [step]
    line = str(found[0])
    assert words in line
    assert line.startswith(f"step {step}: ")
    assert line.endswith(".")
    assert "\n" not in line


@pytest.mark.parametrize("cause", sorted(FAULTS.keys() - {"diverging"}))
def test_a_fault_has_one_cause(cause):
    found = {warning.cause for warning in warnings_of(lines(FAULTS[cause][0]))}
    assert found == {cause}


def without_pairs():
    """The lines of a run on single texts."""
    for line in lines():
        yield {name: value for name, value in line.items() if not name.startswith("nsp")}


@pytest.mark.parametrize(
    "found",
    [
        lines(),
        lines()[1:],  # the first line was not kept
        [*without_pairs()],
        lines(only_at(500, data_wait=0.9)),  # one slow line
        lines(after(0, nsp_accuracy=0.54, nsp_pairs=640)),  # of 12,800 pairs it is not by chance
        lines(after(0, nsp_accuracy=1.0, nsp_pairs=8), until=200),  # 160 pairs prove nothing
    ],
    ids=["whole", "later", "no pairs", "slow line", "learns pairs", "few pairs"],
)
def test_a_sound_run_has_no_warning(found):
    looks = [heldout(step, 4.6 + 2.5 * math.exp(-step / 250)) for step in range(100, 1001, 100)]
    assert warnings_of(sorted([*found, *looks], key=lambda line: line["step"])) == []
    assert warnings_of(found) == []


def test_a_sound_run_by_the_clock_has_no_warning():
    assert warnings_of(lines(), None) == []


@pytest.mark.parametrize("cause", FAULTS)
def test_the_first_lines_of_a_run_prove_nothing_yet(cause):
    change = FAULTS[cause][0]
    assert warnings_of(lines(lambda step: change(step) | change(600), until=40)) == []


def test_pairs_prove_something_by_their_number():
    """54 % of 1,280 pairs may be chance."""
    [warning] = warnings_of(lines(after(0, nsp_accuracy=0.54)))
    assert warning.cause == "nsp_at_chance"
    [warning] = warnings_of(lines(after(0, nsp_accuracy=1.0), until=200))
    assert "over 1,024 pairs" in warning.words


def test_a_cause_is_told_again_only_after_it_had_gone():
    flickers = lines(lambda s: {"mlm_loss": 9.2} if s in (500, 520, 540) else {})
    returns = lines(lambda s: {"mlm_loss": 9.2} if s in (500, 700) else {})
    assert [warning.step for warning in warnings_of(flickers)] == [500]
    assert [warning.step for warning in warnings_of(returns)] == [500, 700]


def with_looks(*losses, change=lambda step: {}):
    looks = [heldout(200 * (i + 1), loss) for i, loss in enumerate(losses)]
    ordered = sorted([*lines(change), *looks], key=lambda line: line["step"])
    return warnings_of(ordered)


def test_held_out_loss_that_rises_while_training_goes_on_falling_is_overfitting():
    found = with_looks(5.5, 5.2, 5.4, 5.6)
    assert [(warning.cause, warning.step) for warning in found] == [("overfitting", 800)]
    assert "rose from 5.200 (step 400) to 5.600" in found[0].words


def test_held_out_loss_that_wavers_or_rises_with_the_training_loss_is_not():
    assert with_looks(5.5, 5.2, 5.25, 5.22) == []
    assert with_looks(5.5, 5.2, 5.21, 5.22) == []
    rising = with_looks(5.0, 5.2, 5.4, 5.6, change=lambda s: {"mlm_loss": 5.0 + s / 1000})
    assert [warning for warning in rising if warning.cause == "overfitting"] == []


# --- Tracked runs, offline: W&B's files and MLflow's file store -----------------------------------
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
