"""The report of a fine-tuning: what is printed and stored of finished results, and its advice."""

import json

import numpy as np
import pytest

from clozeline.train.finetuning.report import (
    FinetuneReport,
    label_efficiency_table,
    no_gain,
)
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
        "",
        "accuracy on imdb, %",
        "      rows      fine-tuned    from scratch    bag-of-words",
        "       100      81.0 ± 2.8      60.0 ± 1.4            69.0",
        "     1,000      81.0 ± 2.8      60.0 ± 1.4            69.0",
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


# Where pretraining did not pay

FLAT, FALLING = [4.01, 4.0], [4.5, 4.0]


def note(ours, scratch, *, losses=FLAT, pairs="none"):
    compared = [("pretrained", 100, (0.5,)), ("pretrained", 1000, ours)]
    points = [
        {
            "start": start,
            "examples": rows,
            "accuracies": accuracies,
            "mean": np.mean(accuracies),
            "deviation": np.std(accuracies, ddof=1) if len(accuracies) > 1 else 0.0,
        }
        for start, rows, accuracies in (*compared, ("from_scratch", 1000, scratch))
    ]
    return no_gain(points, test_rows=1000, losses=losses, pairs=pairs)


@pytest.mark.parametrize(
    ("ours", "scratch", "noise"),
    [
        ((0.73,), (0.742,), "0.0394"),  # of 1,000 test rows: 2 sqrt(0.73 x 0.27 / 1000 + ...)
        ((0.76,), (0.742,), "0.0387"),
        ((0.82, 0.84, 0.86), (0.80, 0.82, 0.84), "0.0468"),  # and of seeds: ... + 2 x 0.02² / 3
        ((0.80,) * 2, (0.79,) * 2, "0.0361"),  # seeds that agree have the same test rows
    ],
)
def test_a_difference_within_the_noise_is_named(ours, scratch, noise):
    [line] = note(ours, scratch)
    means = [sum(found) / len(found) for found in (ours, scratch)]
    assert line == (
        f"pretraining did not pay: accuracy {means[0]:.4f}, from scratch {means[1]:.4f}, and "
        f"differences up to {noise} are noise; pretrain on more text like that of the task."
    )


def test_beyond_the_noise_there_is_nothing_to_say():
    assert note((0.79,), (0.742,)) == []
    assert note((0.82, 0.84, 0.86), (0.76, 0.78, 0.80)) == []


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ({"losses": FALLING}, "for more minutes (its held-out loss still fell, to 4.00)."),
        ({"losses": []}, "like that of the task."),
        ({"pairs": "segments"}, "like that of the task, on shards of --pairs none."),
    ],
)
def test_the_advice_follows_from_the_run(how, advice):
    [line] = note((0.73,), (0.742,), **how)
    assert line.endswith(advice)
