"""How much memory programs may take: of the machine, and of the container that they are in."""

from __future__ import annotations

import pytest

from magmadnn.storage import machine_memory

GIB = 1 << 30
TWO = {
    "/proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {6 << 20} kB\nBuffers: 1 kB\n",
    "/sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
    "/sys/fs/cgroup/memory.current": f"{5 * GIB}\n",
    "/sys/fs/cgroup/memory.stat": f"anon 7\nactive_file {GIB}\ninactive_file {2 * GIB}\n",
}
ONE = {
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{4 * GIB}",
}


@pytest.mark.parametrize("files, free", [
    (TWO, 5 * GIB),  # 8 - (5 - 2)
    ({**TWO, "/sys/fs/cgroup/memory.max": "max"}, 6 * GIB),
    ({**TWO, "/sys/fs/cgroup/memory.stat": ""}, 3 * GIB),
    ({**TWO, "/sys/fs/cgroup/memory.current": ""}, 6 * GIB),
    ({**TWO, "/sys/fs/cgroup/memory.current": f"{12 * GIB}"}, 0),
    ({**TWO, **ONE}, 0),
    ({}, 16 * GIB),
])  # fmt: skip
def test_of_the_machine_and_of_the_container(
    files: dict[str, str], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_memory, "_text_of", lambda name: files.get(name, ""))
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 16 * GIB)
    assert machine_memory.available_bytes() == free


def test_this_machine_has_some() -> None:
    assert 0 < machine_memory.available_bytes() <= machine_memory.total_bytes()
