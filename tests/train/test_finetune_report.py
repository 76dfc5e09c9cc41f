"""The report of a fine-tuning: what is printed and stored of finished results, and its advice."""

import json

import numpy as np
import pytest

from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.results import FinetuneReport, doubts, label_efficiency_table
from clozeline.train.labelled.scores import Scores
from tests.support.small_classifier import report


def test_the_report_is_that_of_the_chosen_seed_and_means_are_over_all():
    found = report()
    assert found.finetuned.scores.accuracy == 0.84
    assert found.rows == 1000
    values = found.values
    assert values["seed"] == 1
    assert values["finetuned"]["accuracy"] == 0.84
    assert values["from_scratch"]["accuracy"] == 0.60  # of the first seed
    assert values["bag_of_words"]["accuracy"] == 0.70
    assert values["plan"] == {"learning_rate": 1e-3, "epochs": 6}
    points = values["label_efficiency"]
    assert [(point["start"], point["examples"]) for point in points] == [
        (start, n) for n in (100, 1000) for start in ("pretrained", "from_scratch", "bag_of_words")
    ]
    point = points[3]
    assert (point["mean"], point["deviation"]) == pytest.approx((0.82, 0.04 / 2**0.5))
    assert point["also"] == {"imdb": [0.79, 0.83]}


def test_the_report_survives_json():
    found = report()
    again = FinetuneReport(json.loads(json.dumps(found.values)))
    assert again == found
    assert again.lines() == found.lines()


def test_the_table_has_mean_and_deviation_in_percent():
    assert label_efficiency_table(report().values["label_efficiency"]) == [
        "",
        "accuracy, %",
        "      rows      fine-tuned    from scratch    bag-of-words",
        "       100      82.0 ± 2.8      61.0 ± 1.4            70.0",
        "     1,000      82.0 ± 2.8      61.0 ± 1.4            70.0",
    ]
    of_one_size = report((1000,))  # there is no curve
    assert label_efficiency_table(of_one_size.values["label_efficiency"]) == []


def test_the_lines_say_what_was_chosen_and_measured():
    lines = report().lines()
    for expected in (
        "          fine-tuned  accuracy 0.8200 ± 0.0283 (2 seeds), 0.8100 on imdb",
        "        bag-of-words  accuracy 0.7000, 0.6900 on imdb",
        "chosen on training rows: learning rate 0.001, 6 epochs, 0.8000 on 200 held-out "
        "training rows",
        "note: something to know",
    ):
        assert expected in lines


# Where the classifier is not worth using

CONFUSED = Scores(("bad", "good"), np.array([[300, 200], [70, 430]]))


def noted(ours=(0.73,), *, scores=CONFUSED, config=None, **others):
    """The notes on accuracies of 1,000 rows, beside those of another model."""
    compared = [("pretrained", 100, (0.5,)), ("pretrained", 1000, ours)]
    points = [
        {
            "start": start,
            "examples": rows,
            "accuracies": accuracies,
            "mean": np.mean(accuracies),
            "deviation": np.std(accuracies, ddof=1) if len(accuracies) > 1 else 0.0,
        }
        for start, rows, accuracies in (
            *compared, *((start, 1000, found) for start, found in others.items())
        )
    ]  # fmt: skip
    return doubts(scores, points, config or FinetuneConfig())


@pytest.mark.parametrize("start", ["from_scratch", "bag_of_words"])
def test_a_compared_model_that_is_better_by_the_mean_of_the_seeds_is_named(start):
    name = {"from_scratch": "from scratch", "bag_of_words": "bag-of-words"}[start]
    [line] = noted((0.82, 0.84), **{start: (0.80, 0.88)})
    assert line.startswith(f"{name} is better: accuracy 0.8300, {name} 0.8400; give more ")
    assert noted((0.82, 0.84), **{start: (0.78, 0.86)}) == []


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "; give more labelled rows, or pretrain on more text like that of the task."),
        ({"learning_rate": 1e-3}, "; leave --learning-rate out to have them chosen, give more"),
        ({"epochs": 1}, "; leave --epochs out to have them chosen, give more labelled rows"),
        ({"epochs": 1, "learning_rate": 1e-3}, "; leave --learning-rate and --epochs out to have"),
    ],
)
def test_a_classifier_worse_than_bag_of_words_says_so_and_what_to_try(options, advice):
    [line] = noted(bag_of_words=(0.742,), config=FinetuneConfig(**options))
    assert line.startswith("bag-of-words is better: accuracy 0.7300, bag-of-words 0.7420; ")
    assert advice in line


@pytest.mark.parametrize(
    ("confusion", "is_noted"),
    [
        ([[0, 400], [0, 600]], True),
        ([[999, 0], [1, 0]], True),
        ([[1, 399], [0, 600]], False),
        ([[0, 0], [0, 1000]], False),  # all rows are of the class
        ([[0, 0], [1000, 0]], False),
    ],
)
def test_a_classifier_that_predicts_one_class_says_so(confusion, is_noted):
    scores = Scores(("bad", "good"), np.array(confusion))
    notes = noted(scores=scores)
    assert len(notes) == is_noted
    if is_noted:
        name = scores.names[int(scores.confusion.sum(0).argmax())]
        assert notes[0].startswith(f"all 1,000 test rows are predicted as '{name}'; give more")
