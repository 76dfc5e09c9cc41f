"""Unlabelled texts are used where held-out training rows say that they help, and only then."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import finetune
from clozeline.train.finetuning.hyperparameters import is_fixed, select_plan
from clozeline.train.finetuning.report import FinetuneReport
from clozeline.train.finetuning.self_training import surest
from clozeline.train.finetuning.training_loop import Plan
from tests.support.small_runs import write_small_run
from tests.test_finetune import MODEL, TOKENIZER, write_rows
from tests.test_hyperparameters import RATES, TWO_CLASSES, Learner

FEW: dict[str, Any] = {"learning_rate": 3e-3, "epochs": 6, "baseline": False, "max_examples": 60}


@given(
    st.lists(st.tuples(*3 * [st.integers(-9, 9)]), min_size=1),
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(0, 40),
)
def test_the_surest_of_each_class_are_taken_in_the_proportions_of_the_labels(logits, labels, count):
    logits, labels = np.array(logits, np.float32), np.array(labels)
    rows, guesses = surest(logits, labels, count)
    assert (np.diff(rows) > 0).all()
    assert (guesses == logits[rows].argmax(1)).all()
    powers = np.exp(logits.astype(np.float64))
    sure = powers.max(1) / powers.sum(1)
    for i in range(3):
        of_class = np.flatnonzero(logits.argmax(1) == i)
        taken = rows[guesses == i]
        assert len(taken) == min(len(of_class), round(count * np.mean(labels == i)))
        left = np.setdiff1d(of_class, taken)
        if len(taken) and len(left):
            assert sure[taken].min() >= sure[left].max() - 1e-9


class Guesser(Learner):
    """A learner that gains or loses by unlabelled texts."""

    def __init__(self, gain):
        super().__init__(TWO_CLASSES, rate=1e-3, epochs=12)
        self.gain = gain

    def __call__(self, train, held, plan):
        logits = super().__call__(train, held, plan)
        margin = self.gain * bool(plan.guessed) * (2 * self.labels[held] - 1)
        return logits + np.stack([-margin, margin], 1).astype(np.float32)


@pytest.mark.parametrize(("gain", "guessed"), [(0.5, 200), (-0.5, 0)])
def test_unlabelled_texts_are_used_if_held_out_rows_gain(gain, guessed):
    learner = Guesser(gain)
    found = select_plan(learner, TWO_CLASSES, FinetuneConfig(), RATES, seed=0, unlabelled=1_000)
    assert found.plan == Plan(learning_rate=1e-3, epochs=12, guessed=guessed)
    assert [plan.guessed for plan, _ in found.tried] == [0] * (len(found.tried) - 1) + [200]


def test_with_unlabelled_texts_there_is_always_something_to_choose():
    fixed = {"learning_rate": 1e-3, "epochs": 3}
    assert is_fixed(FinetuneConfig(**fixed), 100)
    assert not is_fixed(FinetuneConfig(**fixed, unlabelled="texts.jsonl"), 100)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    return write_small_run(folder, BertForPretraining(MODEL, seed=7), TOKENIZER, max_seq_length=12)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Labelled rows, test rows, and as many texts without labels as with, under another name."""
    folder = tmp_path_factory.mktemp("rows")
    table = pq.read_table(write_rows(folder / "more.parquet", 3_000, seed=2))
    pq.write_table(pa.table({"body": table["text"]}), folder / "texts.parquet")
    return {
        "train": write_rows(folder / "train.parquet", 500, seed=0),
        "test": write_rows(folder / "test.parquet", 400, seed=1),
        "texts": f"{folder}/texts.parquet?text=body",
    }


def trained(run: Path, sources: dict[str, str], out: Path, **changes: Any) -> FinetuneReport:
    config = FinetuneConfig(**FEW | changes)
    return finetune(run, sources["train"], out=out, test=sources["test"], config=config)


def test_a_planted_signal_is_learned_better_with_unlabelled_texts(run, sources, tmp_path):
    alone = trained(run, sources, tmp_path / "alone")
    helped = trained(run, sources, tmp_path / "helped", unlabelled=sources["texts"])
    assert helped.finetuned.chosen.plan == Plan(learning_rate=3e-3, epochs=6, guessed=600)
    assert helped.finetuned.scores.accuracy > alone.finetuned.scores.accuracy + 0.03
    assert "6 epochs after 600 unlabelled texts" in "\n".join(helped.lines())
    stored = json.loads((tmp_path / "helped" / "report.json").read_text())
    assert stored["plan"]["guessed"] == 600
    again = trained(run, sources, tmp_path / "helped", unlabelled=sources["texts"])
    assert not again.is_new
    with pytest.raises(InputError, match="holds a classifier of another config"):
        trained(run, sources, tmp_path / "helped", unlabelled=sources["texts"], max_unlabelled=9)


def test_fewer_unlabelled_texts_are_a_random_part(run, sources, tmp_path):
    report = trained(run, sources, tmp_path / "out", unlabelled=sources["texts"], max_unlabelled=50)
    assert [plan.guessed for plan, _ in report.finetuned.chosen.tried] == [0, 10]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unlabelled": "none.jsonl"}, "none.jsonl"),
        ({"unlabelled": "TEXTS"}, "no column 'text'"),
        ({"unlabelled": "TEXTS?text=body", "text_pair": "second"}, "has single texts, but the"),
    ],
)
def test_texts_that_do_not_fit_are_refused(run, sources, tmp_path, changes, message):
    path = sources["texts"].removesuffix("?text=body")
    changes = changes | {"unlabelled": changes["unlabelled"].replace("TEXTS", path)}
    with pytest.raises(InputError, match=message):
        trained(run, sources, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_two_texts_at_least_are_read():
    with pytest.raises(ValueError, match="max_unlabelled is 1"):
        FinetuneConfig(max_unlabelled=1)
