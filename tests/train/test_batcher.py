"""Texts of concurrent requests share a batch; none is lost or mixed up."""

import asyncio
import threading

import numpy as np

from clozeline.train.inference.batcher import Batcher


def lengths(rows):
    return np.array([[len(text)] for (text,) in rows])


class Gated:
    """A classify that waits for `gate`, and the sizes of the batches that it got."""

    def __init__(self):
        self.gate, self.sizes = threading.Event(), []

    def __call__(self, rows):
        self.sizes.append(len(rows))
        self.gate.wait(30)
        return lengths(rows)

    async def begun(self, batcher):
        """Until the first rows are computed."""
        while batcher.waiting:
            await asyncio.sleep(0)


def test_what_waits_while_a_batch_is_computed_is_the_next_batch():
    async def run():
        classify = Gated()
        batcher = Batcher(classify, max_batch=4, max_waiting=100)
        first = batcher.submit([("a",)])
        await classify.begun(batcher)
        others = [batcher.submit([("b" * n,), ("c" * n,)]) for n in range(1, 4)]
        assert batcher.waiting == 6
        classify.gate.set()
        assert (await first[0]).tolist() == [1]
        found = [[int(answer[0]) for answer in await asyncio.gather(*two)] for two in others]
        assert found == [[1, 1], [2, 2], [3, 3]]
        assert (classify.sizes, batcher.waiting) == ([1, 4, 2], 0)

    asyncio.run(run())


def test_too_many_are_refused_and_those_that_nobody_waits_for_are_left_out():
    async def run():
        classify = Gated()
        batcher = Batcher(classify, max_batch=4, max_waiting=2)
        computed = batcher.submit([("a",)])
        await classify.begun(batcher)
        [kept, left] = batcher.submit([("b",), ("c",)])
        assert batcher.submit([("d",)]) is None
        left.cancel()
        computed[0].cancel()
        classify.gate.set()
        assert (await kept).tolist() == [1]
        assert classify.sizes == [1, 1]

    asyncio.run(run())
