"""One table of md.linalg and md.fft on the CPU beside NumPy, SciPy, PyTorch and JAX, with each row's goal.

python benchmarks/linalg/rows.py [single] [many] [fft] [--threads 1] [--sizes 64 ...] [--torch PYTHON]

Each contender has a process of its own, and they take turns at each row: two cores of a virtual machine may
for seconds be two threads of one core, which makes two threads of BLAS slower than one. PyTorch runs in the
interpreter that `--torch` names, which need not have magmadnn; JAX where it is installed. Times are
microseconds, the least of all turns; `-` where a peer has no such function; a star where the goal is not
reached.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SINGLE = ("solve", "cholesky", "qr", "svd", "eigh")
MANY, MANY_OF, SMALL = 10_000, ("cholesky", "lu_factor", "solve", "matmul"), (8, 16, 32)
FFT = ((1 << 10,), (1 << 14,), (1 << 17,), (1 << 20,), (1 << 22,), (1024, 1024), (128, 128, 128))
_MORE_THAN_BYTES = 1.3
PEERS = ("NumPy", "SciPy", "PyTorch", "JAX")
TURNS, ANSWER = 4, "time: "
REST = (
    0.05  # seconds between contenders: BLAS's threads wait for some 30 ms without giving cores up
)
Case = tuple[str, str, tuple[int, ...]]  # section, function, shape of the first operand


def cases(sections: list[str], sizes: list[int]) -> Iterator[Case]:
    """All rows."""
    if "single" in sections:
        yield from (("single", f, (n, n)) for n in sizes for f in SINGLE)
    if "many" in sections:
        yield from (("many", f, (MANY, n, n)) for n in SMALL for f in MANY_OF)
    if "fft" in sections:
        yield from (("fft", "fftn", shape) for shape in FFT)


def operands(case: Case) -> tuple[np.ndarray, ...]:
    """The same for all."""
    _, function, shape = case
    draw = np.random.default_rng(0)
    a = draw.normal(size=shape)
    if function == "fftn":
        return (a + 1j * draw.normal(size=shape),)
    if function in ("cholesky", "eigh"):
        a = a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1])
    if function == "solve":
        return a, draw.normal(size=(*shape[:-1], 1))
    return (a, draw.normal(size=shape)) if function == "matmul" else (a,)


def least(call: Callable[..., Any], given: tuple[Any, ...], seconds: float) -> float:
    """Microseconds of the fastest of the calls within some seconds, at least two."""
    call(*given)
    best, end, calls = np.inf, time.perf_counter() + seconds, 0
    while calls < 2 or time.perf_counter() < end:
        begin = time.perf_counter()
        call(*given)
        best, calls = min(best, time.perf_counter() - begin), calls + 1
    return 1e6 * float(best)


# --- what the contenders call ---------------------------------------------------------------------


def by_numpy(case: Case, given: tuple[np.ndarray, ...]) -> tuple[Any, Any]:
    """NumPy's function and its operands."""
    _, function, _ = case
    if function in ("fftn", "matmul"):
        return {"fftn": np.fft.fftn, "matmul": np.matmul}[function], given
    if function == "svd":
        return (lambda a: np.linalg.svd(a, full_matrices=False)), given
    return getattr(np.linalg, function, None), given


def by_scipy(case: Case, given: tuple[np.ndarray, ...]) -> tuple[Any, Any]:
    """SciPy's, of single matrices and transforms."""
    import scipy.fft
    import scipy.linalg as linalg

    section, function, _ = case
    if section == "many":
        return None, given
    if function == "fftn":
        workers = int(os.environ["OMP_NUM_THREADS"])
        return (lambda x: scipy.fft.fftn(x, workers=workers)), given
    named = {
        "cholesky": lambda a: linalg.cholesky(a, lower=True),
        "qr": lambda a: linalg.qr(a, mode="economic"),
        "svd": lambda a: linalg.svd(a, full_matrices=False),
    }
    return named.get(function, getattr(linalg, function)), given


def by_torch(case: Case, given: tuple[np.ndarray, ...]) -> tuple[Any, Any]:
    """PyTorch's."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tensors = tuple(map(torch.from_numpy, given))
    _, function, _ = case
    if function == "matmul":
        return torch.matmul, tensors
    if function == "svd":
        return (lambda a: torch.linalg.svd(a, full_matrices=False)), tensors
    return getattr(torch.fft if function == "fftn" else torch.linalg, function), tensors


def by_jax(case: Case, given: tuple[np.ndarray, ...]) -> tuple[Any, Any]:
    """JAX's, compiled, for stacks."""
    import jax

    jax.config.update("jax_enable_x64", True)
    section, function, _ = case
    if section != "many":
        return None, given
    made = {"matmul": jax.numpy.matmul, "lu_factor": jax.scipy.linalg.lu_factor}
    call = jax.jit(jax.vmap(made.get(function, getattr(jax.numpy.linalg, function, None))))
    return (lambda *a: jax.block_until_ready(call(*a))), tuple(map(jax.numpy.asarray, given))


def by_magmadnn(case: Case, given: tuple[np.ndarray, ...]) -> tuple[Any, Any]:
    """Ours, at once, of Tensors."""
    import magmadnn as md

    tensors = tuple(map(md.asarray, given))
    _, function, _ = case
    if function in ("fftn", "matmul"):
        return {"fftn": md.fft.fftn, "matmul": md.ops.matmul}[function], tensors
    if function == "svd":
        return (lambda a: md.linalg.svd(a, full_matrices=False)), tensors
    return getattr(md.linalg, function), tensors


MAKERS = {
    "NumPy": by_numpy, "SciPy": by_scipy, "PyTorch": by_torch, "JAX": by_jax, "ours": by_magmadnn,
}  # fmt: skip


def serve(contender: str, options: argparse.Namespace) -> None:
    """Answer each line of a row's number by what a contender takes, in this process."""
    rows, ready = list(cases(options.sections, options.sizes)), {}
    for line in sys.stdin:
        case = rows[int(line)]
        try:
            if case not in ready:
                ready = {case: MAKERS[contender](case, operands(case))}
            call, given = ready[case]
            found = None if call is None else least(call, given, options.seconds / TURNS)
        except ImportError:
            found = None
        print(ANSWER + json.dumps(found), flush=True)


class Contender:
    """A process of a contender on so many threads."""

    def __init__(self, name: str, arguments: list[str], options: argparse.Namespace) -> None:
        self._run = None
        python = options.torch if name == "PyTorch" else sys.executable
        if not python:
            return
        names = ("OMP", "OPENBLAS", "MKL", "MAGMADNN")
        threads = {f"{key}_NUM_THREADS": str(options.threads) for key in names}
        environment = {**os.environ, **threads}
        if name == "JAX" and options.threads == 1:
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        self._run = subprocess.Popen(
            [python, __file__, *arguments, "--contender", name], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def time(self, row: int) -> float | None:
        """Microseconds of a row; None where there is no such function."""
        if self._run is None:
            return None
        assert self._run.stdin is not None and self._run.stdout is not None
        print(row, file=self._run.stdin, flush=True)
        answer = next(x for x in self._run.stdout if x.startswith(ANSWER))
        time.sleep(REST)
        found: float | None = json.loads(answer.removeprefix(ANSWER))
        return found

    def end(self) -> None:
        """Let the process end."""
        if self._run is not None:
            self._run.communicate()


def of_bytes(case: Case) -> float:
    """Microseconds to read two stacks and write one, by a sum in memory that is there."""
    a, b = operands(case)
    return least(lambda x, y, to: np.add(x, y, out=to), (a, b, np.empty_like(a)), 0.2)


def goal_of(case: Case, peers: dict[str, float]) -> float:
    """Microseconds to reach."""
    section, function, _ = case
    best = min(peers.values(), default=np.inf)
    if section == "single":
        return 1.05 * min(peers[name] for name in ("NumPy", "SciPy") if name in peers) + 20
    if section == "fft":
        return peers.get("SciPy", best)
    if function == "matmul" and case[2][-1] > SMALL[0]:
        return _MORE_THAN_BYTES * of_bytes(case)
    shares = {"NumPy": 1 / 5, "JAX": 1 / 2, "PyTorch": 1 / 3}
    if function == "matmul":
        shares = {"NumPy": 1 / 5}
    return min((peers[name] * share for name, share in shares.items() if name in peers), default=0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", default=["single", "many", "fft"])
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--torch", default="", help="an interpreter that has PyTorch")
    parser.add_argument("--contender", choices=[*MAKERS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        serve(options.contender, options)
        return
    contenders = {name: Contender(name, sys.argv[1:], options) for name in (*PEERS, "ours")}
    title = f"{options.threads} thread{'s' * (options.threads > 1)}"
    print(f"{title:<28}" + "".join(f"{n:>12}" for n in (*contenders, "goal")) + "   ")
    for number, case in enumerate(cases(options.sections, options.sizes)):
        found: dict[str, float | None] = dict.fromkeys(contenders)
        for _ in range(TURNS):
            for name, contender in contenders.items():
                known = [x for x in (found[name], contender.time(number)) if x is not None]
                found[name] = min(known, default=None)
        own = found.pop("ours")
        goal = goal_of(case, {name: t for name, t in found.items() if t is not None})
        assert own is not None
        cells = ["-" if t is None else f"{t:.1f}" for t in (*found.values(), own, goal)]
        name = f"{case[1]} {' x '.join(map(str, case[2]))}"
        star = "" if own <= goal else "  *"
        print(f"{name:<28}" + "".join(f"{c:>12}" for c in cells) + star, flush=True)
    for contender in contenders.values():
        contender.end()


if __name__ == "__main__":
    main()
