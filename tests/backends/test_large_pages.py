"""Blocks in large pages: apart from each other, zero, and given back."""

from __future__ import annotations

import gc
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from magmadnn.backends.cpu import host
from magmadnn.backends.cpu.host import (
    ALIGNMENT,
    AVAILABLE,
    LARGE_PAGES,
    PAGE,
    SLAB,
    LargePages,
)

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this system has no private mappings")


def test_blocks_are_apart_and_zero_whatever_was_there_before() -> None:
    pages, rng, held = LargePages(), np.random.default_rng(1), list[tuple[np.ndarray, int]]()
    for number in range(1, 400):
        if held and rng.random() < 0.45:
            block, mark = held.pop(int(rng.integers(len(held))))
            assert np.all(block == mark)  # nobody wrote here
            del block
        nbytes = int(rng.integers(1, 300_007))
        block = pages.allocate(nbytes)
        assert block.size == nbytes
        assert block.ctypes.data % ALIGNMENT == 0
        assert not block.any()
        block[:] = mark = number % 251 + 1
        held.append((block, mark))
    assert all(np.all(block == mark) for block, mark in held)


def test_a_view_keeps_its_block() -> None:
    pages = LargePages()
    view = pages.allocate(40_009)[1003:2003].view(np.uint8)
    view[:] = 7
    gc.collect()
    others = [pages.allocate(40_009) for _ in range(5)]
    assert not any(other.any() for other in others)
    assert np.all(view == 7)


def test_slabs_go_back_when_their_last_block_does() -> None:
    pages = LargePages()
    blocks = [pages.allocate(SLAB // 3) for _ in range(7)]
    large = pages.allocate(3 * SLAB + 1)
    assert pages.nbytes == 4 * SLAB + 3 * SLAB + PAGE
    del large
    assert pages.nbytes == 4 * SLAB
    del blocks[1:]
    assert pages.nbytes == SLAB
    blocks.clear()
    assert pages.nbytes == 0


def test_freed_neighbours_become_one_part() -> None:
    pages = LargePages()
    first, second, third = (pages.allocate(SLAB // 4) for _ in range(3))
    kept = pages.allocate(SLAB // 4)
    first[0] = 1
    del second, first, third  # in an order that joins on both sides
    whole = pages.allocate(3 * SLAB // 4)
    assert pages.nbytes == SLAB
    assert not whole.any()
    assert not kept.any()


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(MemoryError):
        LargePages().allocate(1 << 60)


def test_blocks_come_and_go_in_many_threads() -> None:
    pages, wrong = LargePages(), list[int]()

    def work(mark: int) -> None:
        for number in range(200):
            block = pages.allocate(20_000 + 17 * number)
            if block.any():
                wrong.append(mark)
            block[:] = mark
            if not np.all(block == mark):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(k + 1,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pages.nbytes == 0


def test_large_blocks_of_the_host_lie_here_and_small_ones_do_not() -> None:
    gc.collect()  # what other tests left is not counted
    before = LARGE_PAGES.nbytes
    block = host.HostMemory().allocate(5 * SLAB + 3)
    assert LARGE_PAGES.nbytes == before + 5 * SLAB + PAGE
    small = [host.HostMemory().allocate(16_384) for _ in range(SLAB // 16_384 + 1)]
    assert LARGE_PAGES.nbytes == before + 5 * SLAB + PAGE
    assert len(small) > 1
    del block
    assert LARGE_PAGES.nbytes == before


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no large pages on this system")
def test_the_system_is_asked_for_large_pages() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no large pages")
    block = LargePages().allocate(100_003)
    flags = _flags_of(block.ctypes.data)
    assert "hg" in flags.split()


def _flags_of(address: int) -> str:
    """What the kernel says about the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(maxsplit=1)[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(part, 16) for part in head.split("-"))
            inside = low <= address < high
        elif inside and head == "VmFlags:":
            return line
    raise AssertionError(f"no mapping holds {address:x}")
