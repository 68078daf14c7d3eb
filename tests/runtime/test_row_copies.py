"""Rows that native threads copy: the bytes of NumPy's, at any size, and nothing beside them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from magmadnn.compiler.llvm.driver.calls import CALL_WORDS, MOST_ARGUMENTS, Calls
from magmadnn.compiler.llvm.driver.driver import Task
from magmadnn.compiler.llvm.kernel import block, load
from magmadnn.runtime.cpu.row_copies import RowCopies, pieces_of

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


def test_pieces_of_any_size_go_where_each_is_to_go_and_pairs_have_their_own_order() -> None:
    sources = [array((65,), "u1"), array((), "i8", 4)]
    goals = [np.zeros((60, *s.shape[1:]), s.dtype) for s in sources]
    copies = RowCopies(list(zip(sources, goals, strict=True)), 40, 3)
    order = np.random.default_rng(5).permutation(ROWS)
    counts, places = (1, 40, 7, 0, 5), (55, 10, 0, 3, 50)
    copies.run_pieces([order[:53], order[100:153][::-1]], pieces_of(counts, places))
    for goal, source, own in zip(goals, sources, (order, order[100:153][::-1]), strict=True):
        wanted = np.zeros_like(goal)
        first = 0
        for count, place in zip(counts, places, strict=True):
            wanted[place : place + count] = source[own[first : first + count]]
            first += count
        np.testing.assert_array_equal(goal, wanted)


def test_functions_are_called_beside_pieces_until_one_fails() -> None:
    told = list[tuple[int, ...]]()

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * MOST_ARGUMENTS)
    def function(*given: int) -> int:
        told.append(given)
        return -7 if given[0] == 4 else 0

    calls = np.zeros((6, CALL_WORDS), np.int64)
    calls[:, 0] = ctypes.cast(function, ctypes.c_void_p).value
    calls[:, 1:] = np.arange(6)[:, None] - np.arange(MOST_ARGUMENTS) * 2**40
    firsts, failed = np.array([0, 1, 1, 3, 6]), np.zeros(2, np.int64)
    arguments = block(Calls(), calls=calls, firsts=firsts, failed=failed)
    source = array((), "i8")
    goal = np.zeros_like(source)
    copies = RowCopies([(source, goal)], 90, 2, [Task(load([Calls()])[0], arguments)])
    copies.run_pieces([np.arange(ROWS)], pieces_of([90, 31, 90, 0], [0, 90, 121, 0]))
    assert told == [tuple(row.tolist()) for row in calls[:5, 1:]]
    assert failed.tolist() == [-7, 4]
    np.testing.assert_array_equal(goal, source)
