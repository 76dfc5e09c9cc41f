"""`finetune --from-scratch` says where pretraining did not pay."""

import pytest

from clozeline.train.finetuning.label_efficiency import Point, no_gain

FLAT, FALLING = [4.01, 4.0], [4.5, 4.0]


def note(ours, scratch, *, losses=FLAT, pairs="none"):
    points = [
        Point(start=start, examples=rows, accuracies=accuracies, also={})
        for rows, starts in ((100, {"pretrained": (0.5,)}), (1000, {}))
        for start, accuracies in (starts or {"pretrained": ours, "from_scratch": scratch}).items()
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
