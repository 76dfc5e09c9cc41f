"""Unlabelled texts are used where held-out training rows say that they help, and only then."""

import json
from dataclasses import replace
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
from clozeline.train.benchmark.benchmark import benchmark
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import finetune
from clozeline.train.finetuning.hyperparameters import final_plan, is_fixed, select_plan
from clozeline.train.finetuning.job import read_job
from clozeline.train.finetuning.report import FinetuneReport
from clozeline.train.finetuning.self_training import surest
from clozeline.train.finetuning.training_loop import Plan
from tests.support.command import output_of
from tests.support.small_runs import write_small_run
from tests.test_finetune import MODEL, TOKENIZER, write_rows
from tests.test_hyperparameters import RATES, TWO_CLASSES, Learner

FEW: dict[str, Any] = {"learning_rate": 3e-3, "epochs": 6, "baseline": False, "max_examples": 60}


@given(
    st.lists(st.tuples(*3 * [st.integers(-9, 9)]), min_size=1),
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
)
def test_the_surest_of_each_class_are_taken_in_the_proportions_of_the_labels(logits, labels):
    logits, labels = np.array(logits, np.float32), np.array(labels)
    rows, found = surest(logits, labels)
    assert (np.diff(rows) > 0).all()
    assert (found == logits[rows].argmax(1)).all()
    powers = np.exp(logits.astype(np.float64))
    sure = powers.max(1) / powers.sum(1)
    for i in range(3):
        of_class = np.flatnonzero(logits.argmax(1) == i)
        taken = rows[found == i]
        share = len(logits) / 5 * np.mean(labels == i)
        assert len(taken) == len(of_class) or share <= len(taken) < share + 1
        left = np.setdiff1d(of_class, taken)
        if len(taken) and len(left):
            assert sure[taken].min() >= sure[left].max() - 1e-9


class Helped(Learner):
    """A learner that gains or loses by unlabelled texts."""

    def __init__(self, gain):
        super().__init__(TWO_CLASSES, rate=1e-3, epochs=12)
        self.gain = gain

    def __call__(self, train, held, plan):
        logits = super().__call__(train, held, plan)
        margin = self.gain * bool(plan.unlabelled) * (2 * self.labels[held] - 1)
        return logits + np.stack([-margin, margin], 1).astype(np.float32)


@pytest.mark.parametrize(("gain", "used"), [(0.5, 1_000), (-0.5, 0)])
def test_unlabelled_texts_are_used_if_held_out_rows_gain(gain, used):
    learner = Helped(gain)
    found = select_plan(learner, TWO_CLASSES, FinetuneConfig(), RATES, seed=0, unlabelled=1_000)
    assert found.plan == Plan(learning_rate=1e-3, epochs=12, unlabelled=used)
    assert [plan.unlabelled for plan, _ in found.tried] == [0] * (len(found.tried) - 1) + [1_000]
    assert final_plan(found.plan, 60_000, FinetuneConfig()) == replace(found.plan, epochs=3)


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
    """Labelled rows, test rows, and more texts, without labels and in a column of another name."""
    folder = tmp_path_factory.mktemp("rows")
    table = pq.read_table(write_rows(folder / "more.parquet", 3_000, seed=2))
    columns = {"body": table["text"], "more": table["second"]}
    pq.write_table(pa.table(columns), folder / "texts.parquet")
    return {
        "train": write_rows(folder / "train.parquet", 500, seed=0),
        "test": write_rows(folder / "test.parquet", 400, seed=1),
        "texts": f"{folder}/texts.parquet?text=body",
    }


def trained(run: Path, sources: dict[str, str], out: Path, **changes: Any) -> FinetuneReport:
    config = FinetuneConfig(**FEW | changes)
    return finetune(run, sources["train"], out=out, test=sources["test"], config=config)


def texts_of(run: Path, sources: dict[str, str], **changes: Any) -> list[str]:
    """What a job reads of the unlabelled texts."""
    config = FinetuneConfig(**FEW | {"unlabelled": sources["texts"]} | changes)
    found = read_job(run, sources["train"], sources["test"], [], config).unlabelled
    assert found
    return found.joined()


def test_a_planted_signal_is_learned_better_with_unlabelled_texts(run, sources, tmp_path):
    alone = trained(run, sources, tmp_path / "alone")
    helped = trained(run, sources, tmp_path / "helped", unlabelled=sources["texts"])
    assert helped.finetuned.chosen.plan == Plan(learning_rate=3e-3, epochs=6, unlabelled=3_000)
    assert helped.finetuned.scores.accuracy > alone.finetuned.scores.accuracy + 0.03
    said = "6 epochs after the surest fifth of 3,000 unlabelled texts"
    assert said in "\n".join(helped.lines())
    stored = json.loads((tmp_path / "helped" / "report.json").read_text())
    assert stored["plan"]["unlabelled"] == 3_000
    again = trained(run, sources, tmp_path / "helped", unlabelled=sources["texts"])
    assert not again.is_new
    with pytest.raises(InputError, match="holds a classifier of another config"):
        trained(run, sources, tmp_path / "helped", unlabelled=sources["texts"], max_unlabelled=9)


def test_without_unlabelled_texts_their_limit_says_nothing(run, sources, tmp_path):
    trained(run, sources, tmp_path / "out", max_examples=16)
    assert not trained(run, sources, tmp_path / "out", max_examples=16, max_unlabelled=9).is_new


def test_the_command_helps_every_size_and_seed(run, sources, tmp_path):
    options = ("--learning-rate", 3e-3, "--epochs", 1, "--no-baseline", "--max-examples", 24)
    out = tmp_path / "out"
    output_of(
        *("finetune", run, sources["train"], "--test", sources["test"], "--out", out, *options),
        *("--unlabelled", sources["texts"], "--max-unlabelled", 50),
        *("--label-efficiency", 12, "--seeds", 2),
    )
    results = json.loads((out / "report.json").read_text())["results"]
    assert len(results) == 8
    for result in results:
        tried = [plan["unlabelled"] for plan, _ in result["selection"]["tried"]]
        assert tried == [0, 50]
        assert result["selection"]["plan"]["unlabelled"] in tried


def test_fewer_texts_are_a_random_part_which_the_seed_draws(run, sources):
    every = set(texts_of(run, sources))
    some, others = (set(texts_of(run, sources, max_unlabelled=50, seed=i)) for i in (0, 1))
    assert len(some) == len(others) == 50
    assert some < every
    first = pq.read_table(sources["texts"].partition("?")[0])["body"].to_pylist()[:50]
    assert len(some & others) < 10
    assert len(some & set(first)) < 10


def test_texts_of_test_rows_are_left_out(run, sources):
    tested = pq.read_table(sources["test"])["text"].to_pylist()
    known = pq.read_table(sources["train"])["text"].to_pylist()
    assert set(texts_of(run, sources, unlabelled=sources["train"])) == set(known) - set(tested)
    with pytest.raises(InputError, match="are test rows; give others"):
        texts_of(run, sources, unlabelled=sources["test"])


def test_pairs_are_read_as_pairs(run, sources):
    pairs = {"text": "first", "text_pair": "second"}
    found = texts_of(run, sources, **pairs, unlabelled=sources["texts"] + "&text_pair=more")
    assert len(found) == 3_000
    assert all(len(text.split("\n")) == 2 for text in found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unlabelled": "none.jsonl"}, "none.jsonl"),
        ({"unlabelled": "TEXTS"}, "no column 'text'"),
        ({"unlabelled": "TEXTS?text=body", "text_pair": "second"}, "has single texts, but the"),
        ({"unlabelled": "TEXTS?text=body&text_pair=more"}, "has pairs, but the"),
    ],
)
def test_texts_that_do_not_fit_are_refused(run, sources, tmp_path, changes, message):
    path = sources["texts"].removesuffix("?text=body")
    changes = changes | {"unlabelled": changes["unlabelled"].replace("TEXTS", path)}
    with pytest.raises(InputError, match=message):
        trained(run, sources, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_one_text_at_least_is_read():
    with pytest.raises(ValueError, match="max_unlabelled is 0"):
        FinetuneConfig(max_unlabelled=0)


def test_a_benchmark_reads_no_unlabelled_texts(run, tmp_path):
    config = FinetuneConfig(unlabelled="texts.jsonl")
    with pytest.raises(InputError, match="a benchmark reads no unlabelled texts"):
        benchmark(run, [], out=tmp_path / "out", config=config)
