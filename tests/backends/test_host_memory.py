from __future__ import annotations

import numpy as np
import pytest

from magmadnn.backends.cpu import host


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 4097, 1_000_003])
def test_blocks_are_aligned_and_zero(nbytes: int) -> None:
    memory = host.HostMemory()
    for _ in range(5):
        block = memory.allocate(nbytes)
        assert block.size == nbytes
        assert block.ctypes.data % host.ALIGNMENT == 0
        assert not block.any()
        block[:] = 0xA5  # what comes next must not see it
        memory.zero(block, nbytes // 2)
        assert not block[: nbytes // 2].any()
        assert np.all(block[nbytes // 2 :] == 0xA5)


def test_a_size_beyond_the_machine_is_refused_before_it_is_touched() -> None:
    with pytest.raises(MemoryError):
        host.HostMemory().allocate(host.total_bytes() + 1)


def test_total_is_that_of_the_machine() -> None:
    free, total = host.HostMemory().free_and_total()
    assert free is None
    assert 1 << 28 < total <= 1 << 47
