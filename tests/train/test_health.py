"""Warnings where a fault was planted, and none on a sound run."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from clozeline.train.monitoring.health import find_warnings

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
    "diverging": (lambda s: {"mlm_loss": 7.3 + s / 250}, 120, "above the 7.304 it started from"),
    "not_falling": (noisy(9.2), 190, "it does not fall"),
    "parked_at_unigram": (noisy(UNIGRAM), 200, "counting tokens alone gives 7.000"),
    "nsp_at_chance": (noisy(0.5, "nsp_accuracy"), 300, "no better than chance"),
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


@pytest.mark.parametrize(
    "found",
    [
        lines(),
        lines()[1:],  # the first line was not kept
        [{name: x for name, x in line.items() if name[:3] != "nsp"} for line in lines()],
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


@pytest.mark.parametrize("cause", FAULTS)
def test_the_first_lines_of_a_run_prove_nothing_yet(cause):
    change = FAULTS[cause][0]
    assert warnings_of(lines(lambda step: change(step) | change(600), until=40)) == []


def test_a_cause_is_told_again_only_after_it_had_gone():
    def slow_from(*starts):
        return lines(lambda s: {"data_wait": 0.5} if any(0 <= s - x <= 40 for x in starts) else {})

    assert [warning.step for warning in warnings_of(slow_from(500, 600))] == [520]
    assert [warning.step for warning in warnings_of(slow_from(500, 800))] == [520, 820]


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
