"""Every random number is a pure function of its name and its place.

A *stream* is keyed by (seed, name, scope...), where the scope is a shard, a pool, an epoch. Inside
a stream each number is addressed by (row, lane), so the value depends neither on who else drew,
nor on how many rows are asked for at once, nor on the process, the platform or the year. NumPy's
generators are not used because NumPy does not promise their streams from release to release.

The mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom
number generators", with Stafford's variant 13 constants): a bijection of 64-bit words.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

UInt64Array = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, SplitMix64's increment
LANE = np.uint64(0xD1342543DE82EF95)  # an odd multiplier other than GOLDEN, so lanes are no rows


@np.errstate(over="ignore")  # arithmetic modulo 2**64 is the point
def mix64(words: ArrayLike) -> UInt64Array:
    """SplitMix64's finalizer, on uint64 of any shape."""
    z = np.array(words, dtype=np.uint64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


@np.errstate(over="ignore")
def stream_key(seed: int, name: str, *scope: ArrayLike) -> UInt64Array:
    """The key of a stream: uint64, of the broadcast shape of `scope` (integers >= 0 or arrays).

    An array in the scope gives an array of keys: row i of a batch may come from its own shard.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    key = mix64(np.uint64(int.from_bytes(digest, "little")))
    for part in (seed, *scope):
        key = mix64((key ^ _uint64(part)) + GOLDEN)
    return key


def random_bits(key: ArrayLike, row: ArrayLike, lane: ArrayLike = 0) -> UInt64Array:
    """Uniform uint64 words at (row, lane) of a stream; the three arguments broadcast."""
    return random_bits_of_rows(row_keys(key, row), lane)


@np.errstate(over="ignore")
def row_keys(key: ArrayLike, row: ArrayLike) -> UInt64Array:
    """The keys of rows of a stream, for whoever draws from many lanes of each; they broadcast."""
    return mix64(_uint64(key) + _uint64(row) * GOLDEN)


@np.errstate(over="ignore")
def random_bits_of_rows(row_key: UInt64Array, lane: ArrayLike) -> UInt64Array:
    """What `random_bits` gives at the lanes of the rows with these keys; they broadcast."""
    return mix64(row_key + _uint64(lane) * LANE)


def uniform_below(words: UInt64Array, limit: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers in [0, limit), limit < 2**32, from the high halves of `words`.

    Multiply-shift (Lemire 2019): the bias is below limit / 2**32.
    """
    high = words >> np.uint64(32)
    return ((high * _uint64(limit)) >> np.uint64(32)).astype(np.int64)


def with_probability(words: UInt64Array, probability: ArrayLike) -> NDArray[np.bool_]:
    """True with the given probability, to 53 bits; 0 is never and 1 is always."""
    return (words >> np.uint64(11)) * 2.0**-53 < np.asarray(probability)


def permutation(key: ArrayLike, size: int) -> NDArray[np.int64]:
    """The order of `size` things: a stable argsort of their words."""
    return np.argsort(random_bits(key, np.arange(size)), kind="stable")


def _uint64(values: ArrayLike) -> UInt64Array:
    return np.asarray(values).astype(np.uint64)
