"""Counter-based random numbers: each is a pure function of a stream's key and two counters.

A *stream* is keyed by (seed, name, scope...), where the scope is a shard, a pool or an epoch. Its
numbers are addressed by (row, counter), so a value does not depend on what else was drawn, on how
many rows are computed at once, or on the process or platform. NumPy's generators are not used
because NumPy does not guarantee their streams from release to release.

    random_bits(stream_key(seed, "masks/train", shard, epoch), row, counter)  ->  uint64

The mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom
number generators", with Stafford's variant 13 constants): a bijection of 64-bit integers.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

UInt64Array = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, SplitMix64's increment
# An odd multiplier other than GOLDEN, so that (row, counter) and (counter, row) differ.
COUNTER = np.uint64(0xD1342543DE82EF95)


@np.errstate(over="ignore")  # arithmetic modulo 2**64 is the point
def mix64(bits: ArrayLike) -> UInt64Array:
    """SplitMix64's finalizer, on uint64 of any shape."""
    z = np.array(bits, dtype=np.uint64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


@np.errstate(over="ignore")
def stream_key(seed: int, name: str, *scope: ArrayLike) -> UInt64Array:
    """The key of a stream: uint64, of the broadcast shape of `scope` (integers >= 0 or arrays).

    An array in the scope gives an array of keys, for example one for each row of a batch.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    key = mix64(np.uint64(int.from_bytes(digest, "little")))
    for part in (seed, *scope):
        key = mix64((key ^ _uint64(part)) + GOLDEN)
    return key


def random_bits(key: ArrayLike, row: ArrayLike, counter: ArrayLike = 0) -> UInt64Array:
    """Uniform uint64 values at (row, counter) of a stream; the three arguments broadcast."""
    return random_bits_of_rows(row_keys(key, row), counter)


@np.errstate(over="ignore")
def row_keys(key: ArrayLike, row: ArrayLike) -> UInt64Array:
    """The keys of rows of a stream, for callers that need many counters of each; they broadcast."""
    return mix64(_uint64(key) + _uint64(row) * GOLDEN)


@np.errstate(over="ignore")
def random_bits_of_rows(row_key: UInt64Array, counter: ArrayLike) -> UInt64Array:
    """`random_bits` of the rows with these keys; the arguments broadcast."""
    return mix64(row_key + _uint64(counter) * COUNTER)


def uniform_below(bits: UInt64Array, limit: ArrayLike) -> NDArray[np.int64]:
    """Integers in [0, limit), limit < 2**32, from the high halves of `bits`.

    Multiply-shift (Lemire 2019): the bias is below limit / 2**32.
    """
    high = bits >> np.uint64(32)
    return ((high * _uint64(limit)) >> np.uint64(32)).astype(np.int64)


def with_probability(bits: UInt64Array, probability: ArrayLike) -> NDArray[np.bool_]:
    """True with the given probability, to 53 bits: never for 0, always for 1."""
    return (bits >> np.uint64(11)) * 2.0**-53 < np.asarray(probability)


def permutation(key: ArrayLike, size: int) -> NDArray[np.int64]:
    """A random order of 0 ... size - 1: a stable argsort of their random bits."""
    return np.argsort(random_bits(key, np.arange(size)), kind="stable")


def _uint64(values: ArrayLike) -> UInt64Array:
    return np.asarray(values).astype(np.uint64)
