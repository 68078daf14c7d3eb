"""Counter-based random numbers: Philox 4x32 with 10 rounds.

A value depends on the seed, the stream and the element's index only, never on what was drawn before.
So the CPU, the GPU, any split of a batch and any number of ranks agree, and the whole state of the
generator is the counter.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3
and table 2 (multipliers and key increments of Philox 4x32).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from magmadnn.memory.dtypes import BFLOAT16

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.array(
    [[0x9E3779B9], [0xBB67AE85]], np.uint64
)  # golden ratio and sqrt(3) - 1, as 32-bit fractions
_FACTORS, _STEPS = _MULTIPLIERS[:, 0].tolist(), _KEY_STEPS[:, 0].tolist()
_NUMBERS = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None]  # of rounds
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_SHORT = 1 << 14  # rows whose order is kept
_PART = 1 << 16  # normal numbers that a thread draws at a time
_THREADS = 8
_FEW = 8  # blocks of four that Python's integers work on
_BLOCK = 1 << 14  # blocks of four worked on at a time, so that the temporaries stay in cache

# Random bits of a number, where one word of 32 has enough of them.
DIGITS = {np.dtype(np.float32): 24, np.dtype(np.float16): 11, BFLOAT16: 8}

Words = NDArray[np.uint32]


def philox_4x32(counter: NDArray[np.uint64], key: tuple[Any, Any]) -> NDArray[np.uint64]:
    """The ten rounds: counter words [4, n] (each below 2**32) and a key of two words -> words [4, n].

    The words of the key are integers, or [n] each.
    """
    even, odd = counter[::2].copy(), counter[1::2].copy()  # words 0 and 2, words 1 and 3
    products, high = np.empty_like(even), np.empty_like(even)
    first = np.array(key, np.uint64).reshape(2, -1)
    for keys in (first + _KEY_STEPS * _NUMBERS) & _LOW:  # those of each round, [2, 1]
        np.multiply(even, _MULTIPLIERS, out=products)
        np.right_shift(products, _HALF, out=high)
        np.bitwise_xor(high[::-1], odd, out=even)
        np.bitwise_xor(even, keys, out=even)
        np.bitwise_and(products[::-1], _LOW, out=odd)
    return np.stack([even[0], odd[0], even[1], odd[1]])


def _words_of(block: int, stream: int, key: tuple[int, int]) -> list[int]:
    """The words of one block, by Python's integers: they take less time than arrays of one element."""
    mask, (first, second), (step, other), (times, by) = 0xFFFFFFFF, key, _STEPS, _FACTORS
    a, b = block & mask, block >> 32 & mask
    c, d = stream & mask, stream >> 32 & mask
    for _ in range(_ROUNDS):
        one, two = a * times, c * by
        a, b, c, d = two >> 32 ^ b ^ first, two & mask, one >> 32 ^ d ^ second, one & mask
        first, second = first + step & mask, second + other & mask
    return [a, b, c, d]


def first_word(seed: int, stream: int) -> int:
    """The first of `random_bits`."""
    return _words_of(0, stream, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))[0]


def random_bits(seed: int, stream: int, count: int, start: int = 0) -> Words:
    """`count` words of 32 random bits: elements `start` to `start + count` of the stream.

    Args:
        seed: 64 bits, the generator's key.
        stream: 64 bits that tell independent uses apart (see `stream_of`).
        count: how many elements.
        start: index of the first element.
    """
    seed, stream = int(seed), int(stream)
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    first, last = start // 4, -(-(start + count) // 4)
    if last - first <= _FEW:
        few = [word for block in range(first, last) for word in _words_of(block, stream, key)]
        return np.array(few[start - 4 * first :][:count], np.uint32)
    out = np.empty(count, np.uint32)
    for low in range(first, last, _BLOCK):
        block = np.arange(low, min(low + _BLOCK, last), dtype=np.uint64)
        high = (
            np.full_like(block, stream & 0xFFFFFFFF),
            np.full_like(block, (stream >> 32) & 0xFFFFFFFF),
        )
        words = philox_4x32(np.stack([block & _LOW, block >> _HALF, *high]), key)
        flat = words.T.reshape(-1).astype(np.uint32)  # element 4 b + lane
        skip, at = max(start - 4 * low, 0), max(4 * low - start, 0)
        piece = flat[skip : skip + count - at]
        out[at : at + piece.size] = piece
    return out


def uniform(
    seed: int, stream: int, count: int, dtype: DTypeLike = np.float64, start: int = 0
) -> NDArray[Any]:
    """Uniform numbers in [0, 1): as many random bits as the dtype has digits, so that none rounds to 1.

    53 bits for float64, 24 for float32, 11 for float16, 8 for bfloat16.
    """
    if np.dtype(dtype) == np.float64:
        words = random_bits(seed, stream, 2 * count, 2 * start).reshape(count, 2).astype(np.uint64)
        return ((words[:, 0] << _HALF | words[:, 1]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    digits = DIGITS[np.dtype(dtype)]
    bits = random_bits(seed, stream, count, start) >> np.uint32(32 - digits)
    return (bits.astype(np.float32) * np.float32(2.0**-digits)).astype(dtype)


def uniform_each(
    seeds: Sequence[int], stream: int, count: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """`uniform` for several seeds, [seeds, count]; few numbers are drawn together, which is faster."""
    blocks, digits = -(-count // 4), DIGITS.get(dtype)
    if digits is None or not 0 < blocks * len(seeds) <= _BLOCK:
        return np.stack([uniform(seed, stream, count, dtype) for seed in seeds])
    block = np.tile(np.arange(blocks, dtype=np.uint64), len(seeds))
    high = (np.full_like(block, stream & 0xFFFFFFFF), np.full_like(block, stream >> 32))
    keys = [int(seed) & 0xFFFF_FFFF_FFFF_FFFF for seed in seeds]
    own = np.repeat(np.array(keys, np.uint64), blocks)
    words = philox_4x32(np.stack([block, np.zeros_like(block), *high]), (own & _LOW, own >> _HALF))
    bits = words.T.astype(np.uint32).reshape(len(seeds), -1)[:, :count] >> np.uint32(32 - digits)
    return (bits.astype(np.float32) * np.float32(2.0**-digits)).astype(dtype)


def normal(seed: int, stream: int, count: int) -> NDArray[np.float64]:
    """Standard normal numbers in float64, one from each pair of uniforms.

    z = sqrt(-2 log(1 - u1)) cos(2 pi u2): Box and Muller, Ann. Math. Statist. 29 (1958), eq. (1). Very many
    are drawn by threads, each some of them: the same numbers.
    """
    out = np.empty(count)

    def draw(first: int) -> None:
        goal = out[first : first + _PART]
        u = uniform(seed, stream, 2 * len(goal), start=2 * first).reshape(-1, 2)
        np.multiply(np.sqrt(-2.0 * np.log1p(-u[:, 0])), np.cos(2.0 * np.pi * u[:, 1]), out=goal)

    firsts = range(0, count, _PART)
    if len(firsts) < _THREADS:
        for first in firsts:
            draw(first)
        return out

    from concurrent.futures import ThreadPoolExecutor  # rarely needed

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(draw, firsts))
    return out


def permutation(count: int, seed: int, stream: int) -> NDArray[np.int64]:
    """A random order of `range(count)`: the order that sorts `count` random keys of 64 bits.

    Models that are trained on the same rows ask for the same orders, so that short ones are kept.
    """
    if count > _SHORT:
        return _sorted(count, seed, stream)
    return _short_permutation(count, seed, stream).copy()


def permutations(count: int, seed: int, streams: Sequence[int]) -> NDArray[np.int64]:
    """`permutation` for several streams, [streams, count]: short ones are drawn together, which is faster."""
    blocks = -(-count // 2)  # of four words, which are two keys
    if count > _SHORT or blocks * len(streams) > _BLOCK:
        return np.stack([permutation(count, seed, stream) for stream in streams])
    block = np.tile(np.arange(blocks, dtype=np.uint64), len(streams))
    high = np.repeat(np.array(streams, np.uint64), blocks)
    counter = np.stack([block, np.zeros_like(block), high & _LOW, high >> _HALF])
    words = philox_4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    drawn = words.T.reshape(len(streams), 2 * blocks, 2)[:, :count]
    keys = drawn[..., 0] << _HALF | drawn[..., 1]
    found = np.argsort(keys, axis=1)
    ordered = np.take_along_axis(keys, found, axis=1)
    for row in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
        found[row] = np.argsort(keys[row], kind="stable")
    return found


def shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of `count` rows in an epoch."""
    return permutation(count, seed, stream_of("shuffle", epoch))


@lru_cache(maxsize=64)
def _short_permutation(count: int, seed: int, stream: int) -> NDArray[np.int64]:
    return _sorted(count, seed, stream)


def _sorted(count: int, seed: int, stream: int) -> NDArray[np.int64]:
    words = random_bits(seed, stream, 2 * count).reshape(count, 2).astype(np.uint64)
    keys = words[:, 0] << _HALF | words[:, 1]
    order = np.argsort(keys)  # the fastest way; equal keys, should there be any, stay in order
    found = keys[order]
    return np.argsort(keys, kind="stable") if (found[1:] == found[:-1]).any() else order


def stream_of(name: str, number: int = 0) -> int:
    """A stream for a use called `name`: 32 bits of its hash, above 32 bits of `number` (a step, say)."""
    return _hash_of(name) << 32 | (number & 0xFFFFFFFF)


@lru_cache(maxsize=1024)
def _hash_of(name: str) -> int:
    """32 bits of a name's hash."""
    import hashlib  # takes longer to load than the rest of this folder

    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
