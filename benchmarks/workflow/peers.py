"""1 KB put and taken again, in other systems: python benchmarks/workflow/peers.py [redis dask dragon]

Run it in an environment with redis, dask[distributed] or dragonhpc (Dragon's case under its launcher: dragon
benchmarks/workflow/peers.py dragon). `tuples.py` measures the same of magmadnn. Redis: RPUSH and LPOP on a
list, through a socket of the machine; Dask: put and get of a Queue and set and get of a Variable, from a
worker; Dragon: a key of a distributed dictionary, set, read and removed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SMALL, ROUNDS = 1024, 1000


def microseconds(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The time of one call, the least of three series."""
    for _ in range(rounds // 10):
        run()
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        for _ in range(rounds):
            run()
        best = min(best, (time.perf_counter() - begun) / rounds * 1e6)
    return round(best, 1)


def redis_case() -> None:
    """A server of its own, on a socket of the machine, that writes nothing to the disk."""
    import redis

    data = bytes(SMALL)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        try:
            while not Path(path).exists():
                time.sleep(0.01)
            client = redis.Redis(unix_socket_path=path)

            def both() -> None:
                client.rpush("x", data)
                client.lpop("x")

            print("Redis, RPUSH + LPOP of 1 KB, us:", microseconds(both), flush=True)
        finally:
            server.terminate()
            server.wait()


def _in_worker() -> tuple[float, float]:
    from distributed import Queue, Variable

    data, queue, variable = bytes(SMALL), Queue("q"), Variable("v")

    def through_queue() -> None:
        queue.put(data)
        queue.get()

    def through_variable() -> None:
        variable.set(data)
        variable.get()

    return microseconds(through_queue, 200), microseconds(through_variable, 200)


def dask_case() -> None:
    """A scheduler and a worker, each a process."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        queue, variable = client.submit(_in_worker).result()
    print("Dask, put + get of a Queue, us:", queue, flush=True)
    print("Dask, set + get of a Variable, us:", variable, flush=True)


def dragon_case() -> None:
    """One manager on this machine."""
    import multiprocessing

    import dragon  # noqa: F401  # sets multiprocessing up
    from dragon.data.ddict import DDict

    multiprocessing.set_start_method("dragon")
    data = bytes(SMALL)
    store = DDict(1, 1, 64 << 20)

    def both() -> None:
        store["x"] = data
        del store["x"]

    def read() -> None:
        store["y"]

    store["y"] = data
    print("Dragon, a key of a DDict set + removed, us:", microseconds(both), flush=True)
    print("Dragon, read, us:", microseconds(read), flush=True)
    store.destroy()


if __name__ == "__main__":
    cases = {"redis": redis_case, "dask": dask_case, "dragon": dragon_case}
    for name in sys.argv[1:] or ["redis", "dask"]:
        cases[name]()
