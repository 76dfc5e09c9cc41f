"""Texts of concurrent requests share a batch; none is lost or mixed up."""

import threading

import numpy as np
import pytest

from clozeline.train.inference.batcher import Batcher


def lengths(rows):
    return np.array([[len(text)] for (text,) in rows])


def gated():
    """A classify that waits for `gate`, and the batches that it got."""
    gate, began, batches = threading.Event(), threading.Event(), []

    def classify(rows):
        batches.append(len(rows))
        began.set()
        gate.wait(30)
        return lengths(rows)

    return classify, gate, began, batches


def test_what_waits_while_a_batch_is_computed_is_the_next_batch():
    classify, gate, began, batches = gated()
    batcher = Batcher(classify, max_batch=4, max_waiting=100)
    first = batcher.submit([("a",)])
    began.wait(30)
    others = [batcher.submit([("b" * n,), ("c" * n,)]) for n in range(1, 4)]
    assert batcher.waiting == 6
    gate.set()
    batcher.close()
    assert batches == [1, 4, 2]
    assert [answer.result().tolist() for answer in first] == [[1]]
    assert [[int(a.result()[0]) for a in two] for two in others] == [[1, 1], [2, 2], [3, 3]]
    assert (batcher.batches, batcher.texts, batcher.waiting) == (3, 7, 0)


def test_too_many_are_refused_and_those_that_nobody_waits_for_are_left_out():
    classify, gate, began, batches = gated()
    batcher = Batcher(classify, max_batch=4, max_waiting=2)
    batcher.submit([("a",)])
    began.wait(30)
    [kept, left] = batcher.submit([("b",), ("c",)])
    assert batcher.submit([("d",)]) is None
    left.cancel()
    gate.set()
    batcher.close()
    assert batches == [1, 1]
    assert kept.result().tolist() == [1]


def test_an_error_is_that_of_its_batch_alone():
    def classify(rows):
        if rows[0] == ("bad",):
            raise ZeroDivisionError
        return lengths(rows)

    batcher = Batcher(classify, max_batch=1, max_waiting=9)
    bad, good = batcher.submit([("bad",), ("good",)])
    batcher.close()
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert good.result().tolist() == [4]
