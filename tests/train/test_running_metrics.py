"""A line of metrics has means over the steps since the line before, on any number of processes."""

import time

import pytest
import torch

from clozeline.train.data.batch import LoadedBatch, digest_text
from clozeline.train.engine.distributed import World
from clozeline.train.monitoring.local_time import LocalTime, straggler
from clozeline.train.monitoring.running_metrics import RunningMetrics, StepTimer

ALONE = World(0, 1, torch.device("cpu"))


def loaded(*, predictions=4, pairs=2, tokens=30, digest=0):
    """Counts of a process's part of a batch; its tensors do not matter here."""
    return LoadedBatch(
        batch=torch.empty(0), next_position=0, num_tokens=tokens, num_predictions=predictions,
        num_pairs=pairs, digest=digest,
    )  # fmt: skip


def summed(*steps, running=None, **costs):
    """After steps of (batch, sums of losses)."""
    running = running or RunningMetrics(ALONE, peak_flops=None)
    for batch, losses in steps:
        running.add(batch, torch.as_tensor(losses), **{"flops": 0, "slots": 64, **costs})
    return running


def line_of(running, last, hits=(0.0, 0.0)):
    return running.line(running.sums(last, torch.tensor(hits)))


def test_losses_are_means_over_all_tokens_and_pairs_since_the_line_before():
    """Weighted by what is masked: a mean of the steps' means would be (2 + 5) / 2."""
    small, large = loaded(predictions=1, pairs=1), loaded(predictions=9, pairs=3)
    running = summed((small, [2.0, 0.5]), (large, [45.0, 1.5]))
    line = line_of(running, large)
    assert (line["mlm_loss"], line["nsp_loss"]) == (47 / 10, 2 / 4)
    line = line_of(summed((small, [3.0, 0.25]), running=running), small)
    assert (line["mlm_loss"], line["nsp_loss"]) == (3.0, 0.25)


def test_accuracies_and_the_digest_are_those_of_the_last_batch():
    last = loaded(predictions=8, pairs=4, digest=-2)
    running = summed((loaded(digest=7), [0.0, 0.0]), (last, [0.0, 0.0]))
    line = line_of(running, last, hits=(2.0, 3.0))
    assert (line["mlm_accuracy"], line["nsp_accuracy"], line["nsp_pairs"]) == (0.25, 0.75, 4)
    assert line["data_digest"] == "fffffffffffffffe"


def test_the_terms_of_processes_add_up_to_the_line_of_one():
    """The digest too, which is larger than a float64 can hold."""
    digests, losses = [2**63 - 1, -(2**63), 123456789012345678], torch.rand(3, 2)
    total, line = torch.zeros(16, dtype=torch.float64), {}
    for rank, digest in enumerate(digests):
        world = World(rank, 3, torch.device("cpu"))
        words = torch.nn.Embedding(2, 2)
        local_time = LocalTime(words, words.weight, world.device)
        running = RunningMetrics(world, peak_flops=None, local_time=local_time)
        part = loaded(digest=digest)
        total += summed((part, losses[rank]), running=running).sums(part, torch.tensor([1.0, 0.0]))
    line = running.line(total)
    assert line["mlm_loss"] == pytest.approx(losses[:, 0].sum().item() / (3 * 4))
    assert line["mlm_accuracy"] == 3 / (3 * 4)
    assert line["nsp_pairs"] == 3 * 2
    assert line["slots_per_second"] == pytest.approx(64 / 30 * line["tokens_per_second"], rel=1e-3)
    assert line["data_digest"] == digest_text(*digests)
    assert (line["straggler_seconds"], line["straggler_wait"]) == (0.0, 0.0)


def test_a_process_measures_its_own_passes_of_training():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    local_time = LocalTime(model, model[0].weight, ALONE.device)
    model.eval()(torch.ones(2)).sum().backward()
    assert local_time.lap() == 0.0
    start = time.perf_counter()
    for _ in range(2):
        model.train()(torch.ones(2)).sum().backward()
    whole = time.perf_counter() - start
    assert whole / 5 < local_time.lap() <= whole
    assert local_time.lap() == 0.0


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ([2.0, 2.1, 3.3, 2.0], (2, 0.13, 0.325)),
        ([1.0, 3.0], (1, 0.2, 0.5)),
        ([1.0, 1.0], (0, 0.0, 0.0)),
    ],
)
def test_the_slowest_process_is_named_with_the_others_wait(own, found):
    line = straggler(own, steps=10, seconds=4.0)
    assert tuple(line.values()) == pytest.approx(found)


def test_without_pairs_nothing_is_logged_about_them():
    last = loaded(pairs=0)
    line = line_of(summed((last, [2.0, 0.0])), last)
    assert not [name for name in line if name.startswith("nsp")]


def test_mfu_is_logged_where_the_peak_of_the_device_is_known():
    running = RunningMetrics(ALONE, peak_flops=1.0)
    running = summed((loaded(), [0.0, 0.0]), running=running, flops=1e9, slots=60)
    line = line_of(running, loaded(tokens=30))
    assert line["mfu"] > 0
    assert line["mfu_of_tokens"] == pytest.approx(line["mfu"] / 2, rel=1e-6)
    assert line["slots_per_second"] == pytest.approx(2 * line["tokens_per_second"], rel=1e-3)
    assert "mfu" not in line_of(RunningMetrics(ALONE, peak_flops=None), loaded())


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_what_an_earlier_process_left_is_in_the_next_line_to_the_bit(cut):
    steps = [(loaded(), losses) for losses in torch.rand(3, 2)]
    first = summed(*steps[:cut])
    second = RunningMetrics(ALONE, peak_flops=None, carried=first.state())
    found, wanted = (
        line_of(running, loaded())
        for running in (summed(*steps[cut:], running=second), summed(*steps))
    )
    assert (found["mlm_loss"], found["nsp_loss"]) == (wanted["mlm_loss"], wanted["nsp_loss"])


def test_a_lap_has_what_was_since_the_lap_before():
    timer = StepTimer()
    timer.tokens += 30
    with timer.waiting():
        sum(range(1000))
    seconds, waited, tokens = timer.lap()
    assert 0 < waited <= seconds
    assert tokens == 30
    assert timer.lap()[1:] == (0.0, 0)


def test_the_time_of_an_evaluation_is_not_that_of_steps():
    begin = time.perf_counter()
    timer = StepTimer()
    with timer.paused():
        start = time.perf_counter()
        sum(range(100_000))
        evaluated = time.perf_counter() - start
    assert timer.lap()[0] <= time.perf_counter() - begin - evaluated
