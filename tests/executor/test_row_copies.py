"""Rows that native threads copy: the bytes of NumPy's, at any size, and nothing beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from magmadnn.executor.row_copies import RowCopies

ROWS = 211
# bytes of a row: less than a word, words, a line of a cache, one more, and more
SHAPES = [
    ((), "u1"), ((3,), "u1"), ((), "i8"), ((7,), "f8"), ((63,), "u1"), ((64,), "u1"), ((65,), "u1"),
    ((127,), "u1"), ((5, 7), "f2"), ((28, 28), "u1"), ((785,), "f4"), ((1025,), "f8"),
]  # fmt: skip


def array(shape: tuple[int, ...], dtype: str, seed: int = 3) -> np.ndarray:
    """Any bytes; NaN of any kind among them."""
    raw = np.random.default_rng(seed).integers(0, 256, int(np.prod((ROWS, *shape))) * 8, np.uint8)
    return raw.view(dtype)[: int(np.prod((ROWS, *shape)))].reshape(ROWS, *shape)


def raw_bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@pytest.mark.parametrize("offset", [0, 8, 56])
def test_rows_are_those_of_numpy(shape: tuple[int, ...], dtype: str, offset: int) -> None:
    source = array(shape, dtype)
    whole = np.full(source.nbytes + 128, 0xAA, np.uint8)
    start = (-whole.ctypes.data) % 64 + offset
    goal = whole[start : start + source.nbytes].view(dtype).reshape(source.shape)
    order, row = np.random.default_rng(5).permutation(ROWS)[:173], source[:1].nbytes
    for threads in (1, 3):
        whole[:] = 0xAA
        copies, told = RowCopies([(source, goal)], 50, threads), list[tuple[int, int]]()
        copies.run(order, 11, lambda first, last, told=told: told.append((first, last)))
        copies.close()
        assert told == [(11, 61), (61, 111), (111, 161), (161, 184)]
        np.testing.assert_array_equal(raw_bytes(goal[11:184]), raw_bytes(source[order]))
        assert (whole[: start + 11 * row] == 0xAA).all()
        assert (whole[start + 184 * row :] == 0xAA).all()


def test_what_is_told_is_there_and_threads_share_large_rows() -> None:
    sources = [array((1025,), "f8"), array((), "i8", 4)]
    goals = [np.zeros_like(s) for s in sources]
    copies, order = RowCopies(list(zip(sources, goals, strict=True)), 40, 4), np.arange(ROWS)[::-1]

    def look(first: int, last: int) -> None:
        for source, goal in zip(sources, goals, strict=True):
            np.testing.assert_array_equal(
                raw_bytes(goal[first:last]), raw_bytes(source[order[first:last]])
            )
            assert not raw_bytes(goal[last:]).any()

    copies.run(order, 0, look)
    copies.run(order[5:6], 0, lambda first, last: None)  # anew, fewer
    np.testing.assert_array_equal(raw_bytes(goals[0][0]), raw_bytes(sources[0][order[5]]))


def test_rows_may_lie_apart_and_in_files(tmp_path: Path) -> None:
    wide = array((30,), "f4")
    np.save(tmp_path / "wide.npy", wide)
    mapped = np.load(tmp_path / "wide.npy", mmap_mode="r").view(np.ndarray)
    for source in (wide[::2, 5:18], wide[::-1, :1], mapped[:, 3:], mapped[7:]):
        goal = np.zeros(source.shape, source.dtype)
        assert RowCopies.can(source, goal)
        order = np.random.default_rng(5).permutation(len(source))
        RowCopies([(source, goal)], len(source), 2).run(order, 0, lambda *_: None)
        np.testing.assert_array_equal(raw_bytes(goal), raw_bytes(source[order]))


def test_other_bytes_are_refused() -> None:
    source = np.ones((ROWS, 6), "f4")
    goal = np.zeros_like(source)
    assert RowCopies.can(source, goal)
    assert not RowCopies.can(source.astype(">f4"), goal)
    assert not RowCopies.can(source.astype("f8"), goal)
    assert not RowCopies.can(source[:, ::2], goal[:, :3].copy())
    assert not RowCopies.can(np.asfortranarray(source), goal)
