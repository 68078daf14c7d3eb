"""The generator against its authors' known answers, and what it promises."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn.memory.dtypes import BFLOAT16
from magmadnn.ops import philox

# Random123 1.14, tests/kat_vectors, philox4x32 10 rounds: counter, key, result.
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    low, high = words(key)
    columns = np.array(words(counter), np.uint64)[:, None]
    assert philox.philox_4x32(columns, (low, high))[:, 0].tolist() == words(expected)
    # the same through the public door: element index, stream and seed are the counter and the key
    c0, c1, c2, c3 = words(counter)
    if c1 < 2**29:  # element 4 * (c1 << 32 | c0) is below 2**63
        start = 4 * (c1 << 32 | c0)
        got = philox.random_bits(high << 32 | low, c3 << 32 | c2, 4, start=start)
        assert got.tolist() == words(expected)


def test_a_part_is_the_part_of_the_whole() -> None:
    whole = philox.random_bits(3, 5, 300_000)  # more than one block
    for start, count in ((0, 1), (1, 2), (3, 5), (262_143, 3), (262_144, 8), (299_999, 1), (7, 0)):
        part = philox.random_bits(3, 5, count, start=start)
        assert part.tolist() == whole[start : start + count].tolist()


def test_seeds_and_streams_differ() -> None:
    drawn = {
        philox.random_bits(seed, stream, 4).tobytes() for seed in range(5) for stream in range(5)
    }
    drawn |= {philox.random_bits(seed << 32, 0, 4).tobytes() for seed in range(1, 5)}
    drawn |= {philox.random_bits(0, stream << 32, 4).tobytes() for stream in range(1, 5)}
    assert len(drawn) == 33


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16])
def test_uniform_numbers(dtype: np.dtype) -> None:
    count = 100_000
    drawn = philox.uniform(11, 13, count, dtype)
    assert drawn.dtype == dtype
    exact = drawn.astype(np.float64)
    assert exact.min() >= 0
    assert exact.max() < 1  # rounding up to 1 would break log(1 - u) and dropout of rate 0
    # mean and variance of count numbers: standard deviations sqrt(1 / 12 n) and sqrt(1 / 180 n);
    # 8 bits (bfloat16) lie 2**-9 too low on average
    assert abs(exact.mean() - 0.5) < 5 * np.sqrt(1 / 12 / count) + (dtype == BFLOAT16) * 2**-8
    assert abs(exact.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / count)
    assert philox.uniform(11, 13, 5, dtype, start=1000).tolist() == drawn[1000:1005].tolist()


def test_uniform_numbers_fill_every_bin() -> None:
    counts = np.histogram(philox.uniform(1, 2, 160_000, np.float32), 16, (0, 1))[0]
    # chi-square with 15 degrees of freedom: mean 15, standard deviation sqrt(30)
    assert abs(((counts - 10_000) ** 2 / 10_000).sum() - 15) < 5 * np.sqrt(30)


def test_normal_numbers() -> None:
    drawn = philox.normal(3, 4, 100_000)
    assert abs(drawn.mean()) < 5 / np.sqrt(drawn.size)
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / drawn.size)
    assert abs((drawn**4).mean() - 3) < 5 * np.sqrt(96 / drawn.size)
    assert np.isfinite(drawn).all()


def test_permutations() -> None:
    order = philox.permutation(1009, 3, 4)
    assert sorted(order.tolist()) == list(range(1009))
    assert order.tolist() == philox.permutation(1009, 3, 4).tolist()
    assert order.tolist() != philox.permutation(1009, 3, 5).tolist()
    assert philox.permutation(0, 3, 4).tolist() == []
    firsts = [philox.permutation(5, 0, stream).tolist()[0] for stream in range(1000)]
    # each first place 200 times, standard deviation sqrt(1000 * 0.2 * 0.8)
    assert all(abs(firsts.count(k) - 200) < 5 * np.sqrt(160) for k in range(5))


def test_streams_of_names() -> None:
    assert philox.stream_of("dense_1/weight") == philox.stream_of("dense_1/weight")
    assert len({philox.stream_of(f"layer_{i}", n) for i in range(100) for n in range(10)}) == 1000
    assert philox.stream_of("a", 7) - philox.stream_of("a") == 7
    assert all(0 <= philox.stream_of(f"layer_{i}") < 2**64 for i in range(100))


@pytest.mark.parametrize("count", [1009, 20_011])
def test_who_writes_a_permutation_changes_no_other(count: int) -> None:
    order = philox.permutation(count, 3, 4)
    first = order.copy()
    order[:] = 0
    assert philox.permutation(count, 3, 4).tolist() == first.tolist() == [*map(int, first)]


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1009])
def test_permutations_drawn_together_are_those_drawn_alone(count: int) -> None:
    streams = [3, 1 << 40, 2**64 - 1, 0]
    together = philox.permutations(count, 2**63 + 5, streams)
    alone = [philox.permutation(count, 2**63 + 5, stream) for stream in streams]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_many_normal_numbers_by_threads_are_those_of_one():
    count = 8 * philox._PART + 5
    u = philox.uniform(3, 4, 2 * count).reshape(count, 2)
    expected = np.sqrt(-2.0 * np.log1p(-u[:, 0])) * np.cos(2.0 * np.pi * u[:, 1])
    np.testing.assert_array_equal(philox.normal(3, 4, count), expected)
    np.testing.assert_array_equal(philox.normal(3, 4, 7), expected[:7])


@pytest.mark.parametrize("start", [0, 1, 3, 6, 2**34 - 1])
def test_few_words_are_those_of_arrays(start: int) -> None:
    """Python's integers draw few words, arrays many; seeds and streams may be NumPy's integers."""
    seed, stream = 2**64 - 5, philox.stream_of("kernel", 7)
    many = philox.random_bits(seed, stream, 400, start)
    for count in (0, 1, 2, 4, 5, 17, 28):
        few = philox.random_bits(np.uint64(seed), np.uint64(stream), count, start)
        assert few.dtype == many.dtype
        np.testing.assert_array_equal(few, many[:count])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("count", [1, 7, 300, 40_000])
def test_uniform_numbers_of_several_seeds(dtype: str, count: int) -> None:
    seeds, stream = [0, 3, 2**33 + 5, 2**64 - 1], philox.stream_of("some", 2)
    found = philox.uniform_each(seeds, stream, count, np.dtype(dtype))
    for seed, own in zip(seeds, found, strict=True):
        assert own.tobytes() == philox.uniform(seed, stream, count, dtype).tobytes()
