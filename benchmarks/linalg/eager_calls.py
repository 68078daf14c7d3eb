"""Eager calls on Tensors of a GPU beside CuPy's, PyTorch's and JAX's, in turns, and what the host does.

python -m benchmarks.linalg.eager_calls [--sizes 64 512 2048] [--dtypes float64 float32] [--seconds 0.15]

Microseconds: the least of all turns until the result is there, and of ours also until the call returned.
"over" is the better peer's time over ours; "away" how far the result is from that of NumPy in float64, in
eps x n of its largest. `lstsq` of PyTorch on a GPU assumes full rank, and gives no singular values; ours
computes them when they are first read: "s read". "values" are singular values alone. `low` has a rank one
less than full.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.gpu.linear_algebra import peers
from magmadnn.backends.cuda import device_engine

TURNS, CALLS = 4, 3000
Call = Callable[..., Any]
Case = tuple[str, Call, Callable[[Any], Call], tuple[np.ndarray, ...], Call]


def cases(n: int, dtype: str) -> list[Case]:
    """Names, our function, a peer's of its module, operands, and NumPy's of float64 for the first result."""
    rng = np.random.default_rng(n)
    a, b = (rng.normal(size=shape).astype(dtype) for shape in ((n, n), (n, 1)))
    tall, right = (rng.normal(size=shape).astype(dtype) for shape in ((4 * n, n // 2), (4 * n, 1)))
    low = a.copy()
    low[:, 1] = low[:, 0]
    z = (a + 1j * a[::-1]).astype("complex64" if dtype == "float32" else "complex128")
    linalg, fitted = md.linalg, lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0]
    their_lstsq = lambda m: lambda a, b: m.linalg.lstsq(a, b, rcond=None)[0]  # noqa: E731
    return [
        ("matmul", md.ops.matmul, lambda m: m.matmul, (a, a), np.matmul),
        ("fft", md.fft.fft, lambda m: m.fft.fft, (z,), np.fft.fft),
        ("solve", linalg.solve, lambda m: m.linalg.solve, (a, b), np.linalg.solve),
        ("inv", linalg.inv, lambda m: m.linalg.inv, (a,), np.linalg.inv),
        ("qr", linalg.qr, lambda m: m.linalg.qr, (a,), lambda a: np.linalg.qr(a)[0]),
        ("values", linalg.svdvals, _values, (a,), lambda a: np.linalg.svd(a, compute_uv=False)),
        ("lstsq", linalg.lstsq, their_lstsq, (a, b), fitted),
        ("lstsq, s read", _lstsq_and_values, their_lstsq, (a, b), fitted),
        ("lstsq 8:1", linalg.lstsq, their_lstsq, (tall, right), fitted),
        ("lstsq low", linalg.lstsq, their_lstsq, (low, b), fitted),
    ]


def _lstsq_and_values(a: md.Tensor, b: md.Tensor) -> Any:
    """`lstsq` whose singular values are computed too."""
    found = md.linalg.lstsq(a, b)
    found.s.memory.device_pointer()
    return found


def _values(module: Any) -> Call:
    found: Call | None = getattr(module.linalg, "svdvals", None)
    return found or (lambda a: module.linalg.svd(a, compute_uv=False))


def timed(call: Call, wait: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The least microseconds until a result is there, and until the call returned."""
    best, returned, end = np.inf, np.inf, time.perf_counter() + seconds
    while not np.isfinite(best) or time.perf_counter() < end:
        begun = time.perf_counter()
        call()
        back = time.perf_counter()
        wait()
        best, returned = min(best, time.perf_counter() - begun), min(returned, back - begun)
    return 1e6 * float(best), 1e6 * float(returned)


def away(found: Any, wanted: np.ndarray, dtype: str) -> float:
    """The largest difference in eps x n of the largest element."""
    first = found if isinstance(found, md.Tensor) else found[0]
    unit = np.finfo(dtype).eps * max(np.shape(wanted), default=1) * np.abs(wanted).max()
    return float(np.abs(np.asarray(first.read()) - wanted).max() / unit)


def row(name: str, case: Case, dtype: str, seconds: float) -> None:
    """Measure and print one line; who fails, or takes over two seconds, is left out of it."""
    _, ours, theirs, arrays, by_numpy = case
    tensors = [md.Tensor.holding(a, "DEVICE") for a in arrays]
    calls: dict[str, tuple[Call, Callable[[], object]]] = {}
    calls["ours"] = partial(ours, *tensors), device_engine(0).wait
    for peer, (module, given, wait) in peers().items():
        slow = peer == "CuPy" and ("values" in name or "lstsq" in name) and len(arrays[0]) > 1024
        if not slow:  # by the QR method
            calls[peer] = partial(theirs(module), *(given(a) for a in arrays)), wait
    wide = [a.astype("complex128" if a.dtype.kind == "c" else "float64") for a in arrays]
    error = away(calls["ours"][0](), by_numpy(*wide), dtype)
    best, returned = dict.fromkeys(calls, np.inf), np.inf
    for _ in range(TURNS):
        for who, (call, wait) in calls.items():
            try:
                if not np.isfinite(best[who]):
                    call()
                    wait()
                there, back = timed(call, wait, seconds / TURNS)
            except Exception as trouble:  # a peer that lacks it
                print(f"# {who} {name}: {type(trouble).__name__} {str(trouble)[:60]}")
                continue
            best[who] = min(best[who], there)
            returned = min(returned, back) if who == "ours" else returned
    others = [best.get(who, np.inf) for who in peers()]
    cells = "".join(f"{x:11.1f}" for x in (best["ours"], *others))
    over = min(others) / best["ours"]
    print(f"{name:<24}{cells}{over:8.2f}{returned:11.1f}{error:10.2f}", flush=True)


def profile(name: str, call: Callable[[], object]) -> None:
    """The functions of Python that a call spends time in, and how many calls of functions it makes."""
    for _ in range(10):
        call()
    found = cProfile.Profile()
    found.enable()
    for _ in range(CALLS):
        call()
    found.disable()
    device_engine(0).wait()
    stats = pstats.Stats(found)
    print(
        f"{name}: {getattr(stats, 'total_calls', 0) / CALLS:.0f} calls of functions; of each call, us"
    )
    rows = sorted(getattr(stats, "stats", {}).items(), key=lambda item: -item[1][2])
    for (file, _, function), (_, count, own, _, _) in rows[:12]:
        where = file.rsplit("/", 1)[-1]
        print(f"  {1e6 * own / CALLS:7.2f} {count / CALLS:5.1f} x {where}: {function}")


def main() -> None:
    """Print the profiles and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 512, 2048])
    parser.add_argument("--dtypes", nargs="*", default=["float64", "float32"])
    parser.add_argument("--seconds", type=float, default=0.15)
    options = parser.parse_args()
    a = md.Tensor.holding(np.ones((64, 64)), "DEVICE")
    z = md.Tensor.holding(np.ones((64, 64), "complex128"), "DEVICE")
    profile("matmul", lambda: md.ops.matmul(a, a))
    profile("fft", lambda: md.fft.fft(z))
    heads = "".join(f"{x:>11}" for x in ("ours", *peers()))
    print(f"{'':<24}{heads}{'over':>8}{'returned':>11}{'away':>10}")
    for dtype in options.dtypes:
        for n in options.sizes:
            for case in cases(n, dtype):
                row(f"{case[0]} {n} {dtype}", case, dtype, options.seconds)


if __name__ == "__main__":
    main()
