"""md.linalg on a GPU beside CuPy, PyTorch and JAX, and its residuals beside NumPy in float64.

python -m benchmarks.gpu.linear_algebra [accuracy] [large] [many] [fft] [refine] [--seconds 0.3] [--eager]

With --eager the calls of ours are eager ones on Tensors in the device's memory in place of compiled steps,
there are rows of small sizes, at which the call itself takes the time, and the last column says after how
long such a call of ours returned.

Times are the least of several runs within the seconds given for each cell, in microseconds, values on the
device before and after; residuals in units of n eps.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.backends.cuda import device_engine
from magmadnn.runtime import Executable

RNG = np.random.default_rng(1)
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
_WHOLE = 1 << 18  # elements of results that are kept whole
MANY, SMALL = 10_000, (8, 16, 32, 64)
_FEW = (4, 16)  # rows at which a call takes longer than its work
_eager = [False]  # whether calls of ours are eager ones
Run = Callable[[], object]


class Eager:
    """Functions of Tensors in the device's memory, called one after the other as the peers are.

    Args:
        call: the functions.
        arrays: of the operands.
    """

    def __init__(self, call: Callable[..., Any], *arrays: np.ndarray) -> None:
        self._call, self._operands = call, [md.Tensor.holding(a, "DEVICE") for a in arrays]
        made = self()
        for x in made if isinstance(made, tuple) else (made,):
            assert x.kind is md.DEVICE, "a result lies elsewhere"

    def __call__(self) -> Any:
        """Compute anew; the results."""
        return self._call(*self._operands)


class Compiled:
    """Functions of variables on the device whose results lie in variables.

    Args:
        call: the functions.
        arrays: of the operands.
        whole: whether what is timed keeps all results, as small ones may be copied; else a number of each.
    """

    def __init__(self, call: Callable[..., Any], *arrays: np.ndarray, whole: bool = False) -> None:
        operands = [md.variable(f"x{k}", a) for k, a in enumerate(arrays)]
        made = call(*operands)
        results = made if isinstance(made, tuple) else (made,)
        self.results = [
            md.variable(f"y{k}", np.zeros(y.shape, y.dtype)) for k, y in enumerate(results)
        ]
        updates = [(v.node, y.node) for v, y in zip(self.results, results, strict=True)]
        self._step = Executable([], updates, executor="native", device="cuda")
        if whole:
            self._timed = self._step
            return
        # what is timed keeps a number of each result: results themselves stay where they are computed
        parts = [md.ops.real(y[(0,) * y.ndim]) for y in results]
        kept = [md.variable(f"z{k}", np.zeros((), y.dtype)) for k, y in enumerate(parts)]
        timed = [(v.node, y.node) for v, y in zip(kept, parts, strict=True)]
        self._timed = Executable([], timed, executor="native", device="cuda")

    def __call__(self) -> None:
        """Compute anew, and keep a number of each result, or all."""
        self._timed.run({})

    def values(self) -> list[np.ndarray]:
        """Results of one run."""
        self._step.run({})
        return [np.asarray(v).astype(np.float64) for v in self.results]


# --- accuracy -------------------------------------------------------------------------------------


def general(*shape: int) -> np.ndarray:
    """Random matrices."""
    return RNG.normal(size=shape)


def symmetric(*shape: int) -> np.ndarray:
    """Random symmetric matrices."""
    a = RNG.normal(size=shape)
    return np.asarray(a + np.swapaxes(a, -1, -2))


def definite(*shape: int) -> np.ndarray:
    """Random positive definite matrices."""
    a = RNG.normal(size=shape)
    return np.asarray(a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1]))


def turned(a: np.ndarray) -> np.ndarray:
    """Transposes."""
    return np.swapaxes(a, -1, -2)


def _away(found: np.ndarray, expected: np.ndarray, *factors: np.ndarray) -> float:
    """The largest difference, beside the product of norms."""
    size = np.prod([np.linalg.norm(f, axis=(-2, -1)).max(initial=0) for f in factors])
    return float(np.abs(found - expected).max(initial=0) / max(float(size), 1e-300))


def residuals(a: np.ndarray, b: np.ndarray, dtype: str) -> Iterator[tuple[str, float]]:
    """How far results are from what they are to be, for each function."""
    n, one = a.shape[-1], np.eye(a.shape[-1])
    a, b = a.astype(dtype), b.astype(dtype)
    wide, right = a.astype(np.float64), b.astype(np.float64)
    (x,) = Compiled(md.linalg.solve, a, b).values()
    yield "solve", _away(wide @ x, right, wide, x)
    (x,) = Compiled(md.linalg.inv, a).values()
    yield "inv", _away(wide @ x, one, wide, x)
    (size,) = Compiled(lambda v: md.linalg.slogdet(v)[1], a).values()
    yield "slogdet", float(np.abs(size - np.linalg.slogdet(wide)[1]).max(initial=0)) / n
    q, r = Compiled(lambda v: tuple(md.linalg.qr(v)), a).values()
    yield "qr", _away(q @ r, wide, wide)
    yield "qr: Q", _away(turned(q) @ q, one)
    u, s, v = Compiled(lambda v: tuple(md.linalg.svd(v, full_matrices=False)), a).values()
    yield "svd", _away((u * s[..., None, :]) @ v, wide, wide)
    yield "svd: U, V", max(_away(turned(u) @ u, one), _away(v @ turned(v), one))
    (s,) = Compiled(md.linalg.svdvals, a).values()
    yield "svdvals", float(np.abs(s - np.linalg.svd(wide, compute_uv=False)).max() / s.max())
    both = (wide + turned(wide)).astype(dtype)
    w, v = Compiled(lambda x: tuple(md.linalg.eigh(x)), both).values()
    yield "eigh", _away((v * w[..., None, :]) @ turned(v), both.astype(np.float64), both)
    yield "eigh: V", _away(turned(v) @ v, one)
    (w,) = Compiled(md.linalg.eigvalsh, both).values()
    expected = np.linalg.eigvalsh(both.astype(np.float64))
    yield "eigvalsh", float(np.abs(w - expected).max() / np.abs(w).max())
    positive = (wide @ turned(wide) + n * one).astype(dtype)
    (factor,) = Compiled(md.linalg.cholesky, positive).values()
    yield "cholesky", _away(factor @ turned(factor), positive.astype(np.float64), positive)


def accuracy() -> None:
    """Print residuals in n eps, the most over sizes and stacks."""
    shapes = [
        (1, 1),
        (7, 7),
        (33, 33),
        (150, 150),
        (600, 600),
        (300, 8, 8),
        (40, 33, 33),
        (3, 140, 140),
    ]
    worst: dict[tuple[str, str], tuple[float, tuple[int, ...]]] = {}
    for dtype in ("float64", "float32"):
        for shape in shapes:
            for name, found in residuals(general(*shape), general(*shape[:-1], 3), dtype):
                unit = found / (max(shape[-1], 4) * np.finfo(dtype).eps)
                if not unit <= worst.get((name, dtype), (-1.0, shape))[0]:
                    worst[name, dtype] = unit, shape
    print("residuals in n eps, the most, and where")
    for (name, dtype), (unit, shape) in worst.items():
        print(f"{name:>10} {dtype} {unit:8.3f} {shape}{'' if unit < 30 else '  TOO LARGE'}")
    for shape in ((9, 4), (4, 9), (50, 20), (20, 50), (5, 40, 12)):
        a = general(*shape)
        u, s, v = Compiled(lambda x: tuple(md.linalg.svd(x, full_matrices=True)), a).values()
        k = s.shape[-1]
        away = _away((u[..., :k] * s[..., None, :]) @ v[..., :k, :], a, a)
        q, r = Compiled(lambda x: tuple(md.linalg.qr(x)), a).values()
        print(f"{shape}: svd {away / 2e-16:.1f} eps, qr {_away(q @ r, a, a) / 2e-16:.1f} eps")


# --- speed ----------------------------------------------------------------------------------------


@lru_cache
def peers() -> dict[str, tuple[Any, Callable[[np.ndarray], Any], Run]]:
    """Modules of the peers that are installed, how they take arrays, and how they are waited for."""
    found: dict[str, tuple[Any, Callable[[np.ndarray], Any], Run]] = {}
    try:
        cupy = import_module("cupy")
        found["CuPy"] = cupy, cupy.asarray, cupy.cuda.runtime.deviceSynchronize
    except ImportError:
        pass
    try:
        torch = import_module("torch")
        found["PyTorch"] = torch, lambda a: torch.tensor(a, device="cuda"), torch.cuda.synchronize
    except ImportError:
        pass
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others want memory too
    try:
        jax = import_module("jax")
        jax.config.update("jax_enable_x64", True)
        if jax.default_backend() == "gpu":
            waited = Waited(import_module("jax.numpy"), jax.jit)
            found["JAX"] = waited, jax.device_put, lambda: None
    except ImportError:
        pass
    return found


class Waited:
    """A module of JAX whose functions are compiled, and come back when their results are there.

    Args:
        module: that has them, or modules of them.
        jit: compiles a function.
    """

    def __init__(self, module: Any, jit: Callable[..., Any]) -> None:
        self._module, self._jit = module, jit

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not callable(found):
            self.__dict__[name] = Waited(found, self._jit)
            return self.__dict__[name]
        compiled: dict[tuple[tuple[str, Any], ...], Callable[..., Any]] = {}

        def call(*operands: Any, **options: Any) -> Any:
            key = tuple(sorted(options.items()))
            if key not in compiled:
                compiled[key] = self._jit(partial(found, **options))
            made = compiled[key](*operands)
            for part in made if isinstance(made, tuple) else (made,):
                part.block_until_ready()
            return made

        self.__dict__[name] = call
        return call


def microseconds(run: Run, wait: Run, seconds: float) -> float:
    """The least time of a run, of at least two, within some seconds."""
    return timed(run, wait, seconds)[0]


def timed(run: Run, wait: Run, seconds: float) -> tuple[float, float]:
    """The same, and the least time after which a run returns."""
    found, returned, end = list[float](), list[float](), time.perf_counter() + seconds
    run()
    wait()
    while len(found) < 2 or time.perf_counter() < end:
        begun = time.perf_counter()
        run()
        returned.append(time.perf_counter() - begun)
        wait()
        found.append(time.perf_counter() - begun)
        if found[-1] > 2 * seconds:
            break
    return 1e6 * min(found), 1e6 * min(returned)


def row(
    name: str,
    ours: Callable[..., Any],
    theirs: Callable[[Any], Callable[..., Any]],
    arrays: tuple[np.ndarray, ...],
    seconds: float,
    without: tuple[str, ...] = (),
    whole: bool = False,
) -> None:
    """Measure and print one line, without some peers."""
    cells = []
    for peer, (module, given, wait) in peers().items():
        if peer in without:
            cells.append(float("nan"))
            continue
        try:
            call, operands = theirs(module), [given(a) for a in arrays]
            cells.append(microseconds(lambda c=call, o=operands: c(*o), wait, seconds))  # type: ignore[misc]
        except Exception as error:
            print(f"# {peer} {name}: {type(error).__name__} {str(error)[:60]}")
            cells.append(float("nan"))
    run: Run = Eager(ours, *arrays) if _eager[0] else Compiled(ours, *arrays, whole=whole)
    own, returned = timed(run, device_engine(0).wait, seconds)
    others = "".join(f"{cell:14.1f}" for cell in cells)
    last = f"{returned:10.1f}" if _eager[0] else ""
    print(
        f"{name:<24}{own:14.1f}{others}{np.nanmin([*cells, np.inf]) / own:9.2f}{last}", flush=True
    )


def head() -> None:
    """The first line of a table."""
    last = f"{'returned':>10}" if _eager[0] else ""
    others = "".join(f"{p:>14}" for p in peers())
    print(f"{'float64':<24}{'ours':>14}{others}{'best/ours':>9}{last}")


def large(seconds: float, sizes: Sequence[int] = SIZES) -> None:
    """Single matrices."""
    head()
    linalg = md.linalg
    for n in (*_FEW, *sizes) if _eager[0] else sizes:
        a, b = general(n, n), general(n, 1)
        slow = ("CuPy",) if n > 1024 else ()  # by the QR method: some ten seconds
        row(f"matmul {n}", md.ops.matmul, lambda m: m.matmul, (a, a), seconds)
        row(f"solve {n}", linalg.solve, lambda m: m.linalg.solve, (a, b), seconds)
        row(
            f"cholesky {n}",
            linalg.cholesky,
            lambda m: m.linalg.cholesky,
            (definite(n, n),),
            seconds,
        )
        row(f"qr {n}", lambda x: tuple(linalg.qr(x)), lambda m: m.linalg.qr, (a,), seconds)
        row(
            f"eigh {n}", lambda x: tuple(linalg.eigh(x)), lambda m: m.linalg.eigh,
            (symmetric(n, n),), seconds,
        )  # fmt: skip
        row(
            f"svd {n}", lambda x: tuple(linalg.svd(x, full_matrices=False)),
            lambda m: lambda x: m.linalg.svd(x, full_matrices=False), (a,), seconds, slow,
        )  # fmt: skip
        if _eager[0]:
            _eager_rows(n, seconds, slow)


def _eager_rows(n: int, seconds: float, slow: tuple[str, ...]) -> None:
    """Other functions of matrices of n rows, and a transform of each row."""
    a, b, linalg = general(n, n), general(n, 1), md.linalg
    row(f"inv {n}", linalg.inv, lambda m: m.linalg.inv, (a,), seconds)
    row(f"det {n}", linalg.det, lambda m: m.linalg.det, (a,), seconds)
    row(
        f"lstsq {n}", lambda x, y: tuple(linalg.lstsq(x, y)),
        lambda m: lambda x, y: m.linalg.lstsq(x, y, rcond=None), (a, b), seconds, slow,
    )  # fmt: skip
    row(f"fft {n} of {n}", md.fft.fft, lambda m: m.fft.fft, (a + 1j * a,), seconds)


def many(seconds: float) -> None:
    """Many small matrices."""
    head()
    for n in SMALL:
        a, b = general(MANY, n, n), general(MANY, n, 1)
        row(f"matmul {MANY} of {n}", md.ops.matmul, lambda m: m.matmul, (a, a), seconds)
        row(
            f"cholesky {MANY} of {n}",
            md.linalg.cholesky,
            lambda m: m.linalg.cholesky,
            (definite(MANY, n, n),),
            seconds,
        )
        row(f"solve {MANY} of {n}", md.linalg.solve, lambda m: m.linalg.solve, (a, b), seconds)
        row(f"inv {MANY} of {n}", md.linalg.inv, lambda m: m.linalg.inv, (a,), seconds)
        row(f"det {MANY} of {n}", md.linalg.det, lambda m: m.linalg.det, (a,), seconds)
        row(
            f"qr {MANY} of {n}",
            lambda x: tuple(md.linalg.qr(x)),
            lambda m: m.linalg.qr,
            (a,),
            seconds,
        )
        row(
            f"eigh {MANY} of {n}", lambda x: tuple(md.linalg.eigh(x)), lambda m: m.linalg.eigh,
            (symmetric(MANY, n, n),), seconds,
        )  # fmt: skip
        row(
            f"svd {MANY} of {n}",
            lambda x: tuple(md.linalg.svd(x, full_matrices=False)),
            lambda m: lambda x: m.linalg.svd(x, full_matrices=False),
            (a,),
            seconds,
        )


def transforms(seconds: float) -> None:
    """Fourier transforms of complex numbers, and of real ones."""
    head()

    for shape, name in [
        *(((1 << k,), "fft") for k in (10, 14, 18, 21, 24)),
        ((4096, 4096), "fft2"), ((512, 512, 512), "fftn"), ((1 << 24,), "rfft"), ((10_000, 256), "fft"),
    ]:  # fmt: skip
        x = RNG.normal(size=shape).astype(np.float64 if name == "rfft" else np.complex128)
        ours = getattr(md.fft, name)
        title = f"{name} {' x '.join(map(str, shape))}"
        # a number of a complex result is taken by a call between graphs, longer than a short transform
        row(
            title, ours, lambda m, n=name: getattr(m.fft, n), (x,), seconds,  # type: ignore[misc]
            whole=x.size <= _WHOLE,
        )  # fmt: skip


def refined(seconds: float) -> None:
    """Equations of 16384 rows by refinement, beside PyTorch's and ours in float64, with backward errors."""
    cupy, n = import_module("cupy"), 16384
    cupy.random.seed(0)
    a, b = cupy.random.standard_normal((n, n)), cupy.random.standard_normal((n, 1))
    norm = float(cupy.abs(a).sum(1).max())

    def backward(x: Any) -> float:
        return float(cupy.abs(a @ x - b).max() / (norm * cupy.abs(x).max() + cupy.abs(b).max()))

    def line(name: str, run: Run, wait: Run) -> None:
        x = cupy.asarray(run()).reshape(n, 1)
        error = backward(x)
        print(
            f"{name:<24}{microseconds(run, wait, seconds) / 1e3:10.1f} ms  backward error {error:.1e}"
        )

    left, right = md.from_dlpack(a), md.from_dlpack(b)
    found = md.linalg.solve(left, right, method="refine", info=True)
    print(f"# {found.way}, {found.iterations} steps, residual {found.residual:.1e}")
    line(
        "refine 16384", lambda: md.linalg.solve(left, right, method="refine"), device_engine(0).wait
    )
    torch = import_module("torch")
    ta, tb = torch.from_dlpack(a), torch.from_dlpack(b)
    line("PyTorch solve 16384", lambda: torch.linalg.solve(ta, tb), torch.cuda.synchronize)


def main() -> None:
    """Measure and print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["accuracy", "large", "many", "fft", "refine"])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument(
        "--eager", action="store_true", help="time eager calls on Tensors on the device"
    )
    options = parser.parse_args()
    _eager[0] = options.eager
    for what in options.what:
        if what == "accuracy":
            accuracy()
        elif what == "large":
            large(options.seconds, options.sizes)
        else:
            {"many": many, "fft": transforms, "refine": refined}[what](options.seconds)


if __name__ == "__main__":
    main()
