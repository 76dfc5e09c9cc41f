"""Mutations of bytes, drawn from a seed.

mutate(b"abcdef", random.Random(5))  ->  Mutation("zero run", b"ab\\0\\0\\0f", start=2, stop=5)
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """The data after a change; `start` and `stop` enclose the bytes of the original it touched."""

    kind: str
    data: bytes
    start: int
    stop: int


KINDS = (
    "bit flip",
    "byte flips",
    "truncation",
    "insertion",
    "deletion",
    "swap",
    "zero run",
    "copy",
)


def mutate(data: bytes, draw: random.Random) -> Mutation:
    """One mutation of data that is not empty; the result always differs from it."""
    while True:
        mutation = _change(draw.choice(KINDS), data, draw)
        if mutation.data != data:
            return mutation


def _change(kind: str, data: bytes, draw: random.Random) -> Mutation:
    size = len(data)
    at = draw.randrange(size)
    end = min(size, at + 1 + int(draw.expovariate(1 / 16)))
    match kind:
        case "bit flip":
            flipped = data[at] ^ 1 << draw.randrange(8)
            return Mutation(kind, data[:at] + bytes([flipped]) + data[at + 1 :], at, at + 1)
        case "byte flips":
            new = bytes(draw.randrange(256) for _ in range(at, end))
            return Mutation(kind, data[:at] + new + data[end:], at, end)
        case "truncation":
            return Mutation(kind, data[:at], at, size)
        case "insertion":
            new = draw.randbytes(end - at)
            return Mutation(kind, data[:at] + new + data[at:], at, at)
        case "deletion":
            return Mutation(kind, data[:at] + data[end:], at, end)
        case "swap":
            other = draw.randrange(size)
            low, high = sorted((at, other))
            high_end = min(size, high + min(end - at, high - low))
            width = high_end - high
            swapped = data[high:high_end] + data[low + width : high] + data[low : low + width]
            return Mutation(kind, data[:low] + swapped + data[high_end:], low, high_end)
        case "zero run":
            return Mutation(kind, data[:at] + bytes(end - at) + data[end:], at, end)
        case _:
            source = draw.randrange(size)
            new = data[source : source + end - at]
            return Mutation(kind, data[:at] + new + data[at + len(new) :], at, at + len(new))
