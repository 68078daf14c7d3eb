"""Functions of matrices on a device: by cuSOLVER, cuBLAS and kernels of this package, never on the host."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.called import Course
from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.compiler.cuda.library.small import group
from magmadnn.compiler.cuda.library.spectra import bytes_of_singular
from magmadnn.compiler.kernels.library import Library
from magmadnn.errors import NumericError
from magmadnn.graph import Node
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running.sliced import kept_slices
from magmadnn.runtime.cuda.schedule import launches, small
from tests.linalg.test_matrix_functions import FUNCTIONS, listed, matrices, node, right
from tests.linalg.whitening import BATCH, X, Y, apart, trained
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

RNG = np.random.default_rng(12)
# those by factors and spectra; others are made of these and of ops, and expm is the host's
NAMES = [n for n in FUNCTIONS if "norm" not in n and "power" not in n and n != "expm"]


@pytest.fixture(autouse=True)
def no_calls_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps stay on the device, but for those without elements."""
    original = launches.host_call

    def called(layout: Any, work: Any) -> Any:
        if all(0 in one.shape for one in work.needed):
            return original(layout, work)
        raise AssertionError(f"NumPy computes {work.region}")

    monkeypatch.setattr(launches, "host_call", called)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("way", "dtype"),
    [
        ("small kernels", "float32"),
        ("libraries", "float64"),
        pytest.param("small kernels", "float64", marks=pytest.mark.long),
        pytest.param("libraries", "float32", marks=pytest.mark.long),
    ],
)
def test_values_are_those_of_numpy(
    way: str, dtype: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 100 n eps, as on the processor: all functions in one program, which shares factors."""
    if way == "libraries":
        monkeypatch.setattr(group, "LARGEST", 0)
    outputs: list[Node] = []
    feeds: dict[Node, np.ndarray] = {}
    expected: list[tuple[str, np.ndarray, int]] = []
    for name in NAMES:
        function = FUNCTIONS[name]
        for shape in function.shapes:
            if device == "emulated" and np.prod(shape) > 2000:
                continue
            a = matrices(*shape).astype(dtype)
            x = node(a)
            feeds[x] = a
            found = listed(function.call(x))
            outputs += found
            values = listed(function.expected(a.astype(np.float64)))
            n = max(shape[-1], 3) * (shape[-1] if name in ("svd", "eigh") else 1)
            expected += [(f"{name} {shape}", one, n) for one in values]
    with on(device):
        found = Executable(outputs, executor="native", device="cuda", check=True).run(feeds)
    for (name, one, n), other in zip(expected, found, strict=True):
        assert other.shape == one.shape and other.dtype == dtype, name
        bound = 100 * n * np.finfo(dtype).eps * np.abs(one).max(initial=1)
        assert np.abs(other - one).max(initial=0) <= bound, name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wide", [False, True])
def test_kernels_of_small_matrices(wide: bool, device: str) -> None:
    """Stacks that do not fill blocks, groups of all sizes, one matrix for several right sides."""
    outputs: list[Node] = []
    feeds: dict[Node, np.ndarray] = {}
    checks: list[tuple[str, np.ndarray, int]] = []
    shapes = [(9, 2, 2), (5, 17, 17), (3, 32, 32), (2, 32, 9), (2, 9, 32)]
    for shape in [(3, 33, 33), (2, 64, 64)] if wide else shapes:
        a = RNG.normal(size=shape)
        x = node(a)
        feeds[x] = a
        for mode in ("reduced", "complete"):
            outputs += md.linalg.qr(x, mode=mode)
            checks.append((f"qr {mode}", a, 2))
        if shape[-1] != shape[-2]:
            continue
        b = RNG.normal(size=(*shape[:-1], 70))
        y = node(b)
        feeds[y] = b
        square = md.ops.matmul(x, md.ops.swapaxes(x, -1, -2)) + np.eye(shape[-1])
        outputs += [square, md.linalg.cholesky(square)]
        checks.append(("cholesky", a, 2))
        for left, rows in ((x, y), (x[0], y), (md.ops.swapaxes(x, -1, -2), y[0])):
            outputs += [left, rows, md.linalg.solve(left, rows)]
            checks.append(("solve", a, 3))
        for lower, transpose in ((True, False), (True, True), (False, False), (False, True)):
            kept = md.linalg.cholesky(square)
            turned = kept if lower else md.ops.swapaxes(kept, -1, -2)
            left = md.ops.swapaxes(turned, -1, -2) if transpose else turned
            solved = md.linalg.solve_triangular(turned, y, lower=lower, trans=int(transpose))
            outputs += [left, y, solved]
            checks.append(("solve", a, 3))
        slope = gradient(md.ops.sum(md.linalg.solve(x, y)), [y])[0]  # by the transposes
        outputs += [md.ops.swapaxes(x, -1, -2), y * 0 + 1.0, slope]
        checks.append(("solve", a, 3))
    with on(device):
        run = Executable(outputs, executor="native", device="cuda")
        found = iter(run.run(feeds))
        assert "library" not in run.text({})[run.text({}).index("# launches of a run") :]
    for name, a, count in checks:
        n, given = max(a.shape[-2:]), [next(found) for _ in range(count)]
        if name == "solve":
            left, rows, x = given
            difference, scale = left @ x - rows, np.abs(left).sum(-1).max() * np.abs(x).max()
        elif name == "cholesky":
            square, factor = given
            difference, scale = factor @ np.swapaxes(factor, -1, -2) - square, np.abs(square).max()
            assert not np.triu(factor, 1).any()
        else:
            q, r = given
            difference, scale = q @ r - a, np.abs(a).max()
            unit = np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1])
            assert np.abs(unit).max() <= 30 * n * 2.3e-16 and not np.tril(r, -1).any()
        assert np.abs(difference).max() <= 30 * n * 2.3e-16 * scale, (name, a.shape)


def test_one_matrix_of_33_rows_is_the_librarys_and_two_are_the_kernels() -> None:
    """One group of threads takes longer than the library; reflections of tiny and huge numbers are exact."""
    for shape, is_called in (((33, 33), True), ((2, 33, 33), False), ((32, 32), False)):
        a = RNG.normal(size=shape)
        x = node(a)
        scaled = [md.linalg.qr(x * scale) for scale in (1.0, 2.0**-1040, 2.0**1000)]
        with on("emulated"):
            run = Executable([y for pair in scaled for y in pair], executor="native", device="cuda")
            q, r, *others = run.run({x: a})
            launches = run.text({})[run.text({}).index("# launches of a run") :]
            assert ("library geqrf" in launches) is is_called
        assert np.abs(q @ r - a).max() <= 30 * 33 * 2.3e-16 * np.abs(a).max()
        if not is_called:
            assert np.array_equal(others[3], r * 2.0**1000)
            below = 2.0**-1074 * 33  # digits of denormal numbers
            assert np.abs(q @ others[1] - a * 2.0**-1040).max() <= below


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_the_reference(device: str) -> None:
    """First and second: of things that do not depend on signs of vectors."""
    outputs: list[Node] = []
    feeds: dict[Node, np.ndarray] = {}
    for shape in ((5, 5), (2, 4, 4)):
        a = matrices(*shape)
        x = node(a)
        feeds[x] = a
        u, s, v = md.linalg.svd(x, full_matrices=False)
        w, c = md.linalg.eigh(x + md.ops.swapaxes(x, -1, -2))
        q, r = md.linalg.qr(x)
        for y in (
            md.linalg.solve(x, right(a)),
            s,
            u * u * v * v,
            w,
            c * c * c * c,
            q * r,
            md.linalg.det(x),
        ):
            (slope,) = gradient(md.ops.sum(y * RNG.normal(size=y.shape)), [x])
            outputs += [slope, *gradient(md.ops.sum(slope * RNG.normal(size=shape)), [x])]
    expected = Executable(outputs, executor="reference").run(feeds)
    with on(device):
        found = Executable(outputs, executor="native", device="cuda").run(feeds)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8 * np.abs(other).max())


@pytest.mark.parametrize("device", DEVICES)
def test_errors_name_the_matrix_and_change_no_variable(device: str) -> None:
    singular = matrices(2, 3, 5, 5)
    singular[1, 2, :, 3] = singular[1, 2, :, 0] = 0
    holes = matrices(4, 6, 6)
    holes[2, 4, 1] = np.inf
    with on(device):
        for call, array, words in [
            (
                lambda a: md.linalg.solve(a, right(a)),
                singular,
                r"solve: a\[1, 2\] is singular: pivot",
            ),
            (md.linalg.inv, singular, r"inv: a\[1, 2\] is singular: pivot . of 5 is 0"),
            (
                lambda a: md.linalg.solve(np.eye(6), a),
                holes,
                r"solve: b\[2\] holds inf at \[4, 1\]",
            ),
            (md.linalg.det, holes, r"a\[2\] holds inf at \[4, 1\]; give finite numbers"),
            (md.linalg.svdvals, holes, r"svd: a\[2\] holds inf at \[4, 1\]"),
            (md.linalg.eigvalsh, holes, r"eigh: a\[2\] holds inf at \[4, 1\]"),
        ]:
            x, v = node(array), md.variable("v", np.ones(3))
            step = Executable([call(x)], [(v.node, v.node + 1.0)], executor="native", device="cuda")
            with pytest.raises(NumericError, match=words):
                step.run({x: array})
            assert np.array_equal(v, np.ones(3))
        x = node(singular)
        (found,) = Executable([md.linalg.det(x)], executor="native", device="cuda").run(
            {x: singular}
        )
    assert found[1, 2] == 0
    np.testing.assert_allclose(found[0], np.linalg.det(singular[0]), rtol=1e-12)


class Spectrum(md.layers.Layer):
    """x V w of samples, with the eigenvectors V of A + A^T and functions w of its eigenvalues."""

    def build(self, x: Any) -> None:
        """A [n, n]."""
        self.root = self.parameter("root", 2 * x.shape[-1:], md.init.normal(), x.dtype)

    def forward(self, x: Any) -> Any:
        """[batch, n] -> [batch, n]"""
        w, v = md.linalg.eigh(self.root + md.ops.swapaxes(self.root, 0, 1))
        turned = md.ops.matmul(x, v * md.ops.tanh(w))
        return md.ops.matmul(turned, md.ops.swapaxes(v, 0, 1))


def spectral(**options: Any) -> md.Model:
    layers = [md.layers.Input((6,)), Spectrum(), md.layers.Dense(2)]
    return md.Model(layers, loss="mse", optimizer=md.optim.SGD(0.01), seed=3, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_graphs_are_cut_at_calls_that_none_can_hold_and_steps_still_run_in_slices(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses: list[Course] = []
    launch = Course.launch
    monkeypatch.setattr(Course, "launch", lambda self: (courses.append(self), launch(self))[1])
    with on(device):
        model = trained(spectral(device="cuda"))
        assert any(kept_slices._kept.values())  # not batch by batch
        assert len(courses) >= 3 * (len(X) // BATCH) and len(set(courses)) <= 4
        assert "library syevd 6 x 6 in float32" in model.plan()
        assert "by NumPy" not in model.plan()
        assert apart(model, trained(spectral(executor="reference"))) < 1e-3
        assert "library syevd" in str(model.profile(X[:BATCH], Y[:BATCH]))


@pytest.mark.parametrize("device", DEVICES)
def test_refinement_where_a_matrix_lies_on_a_device(device: str) -> None:
    """Digits of float64, steps and residual; errors as on the processor."""
    with on(device):
        for n, shape in ((40, (40, 3)), (7, (7,))):
            a, b = matrices(n, n), RNG.normal(size=shape)
            found = md.linalg.solve(
                md.Tensor.holding(a, "DEVICE"), md.Tensor.holding(b, "DEVICE"), "refine", info=True
            )
            assert found.way == "refinement" and found.iterations > 0
            assert found.x.kind is md.DEVICE and found.x.shape == shape
            assert found.residual <= n * 2.3e-16
            np.testing.assert_allclose(a @ found.x.read(), b, atol=1e-12)
        singular = md.Tensor.holding(np.zeros((4, 4)), "DEVICE")
        with pytest.raises(NumericError, match="solve: a is singular: pivot 1 of 4 is 0"):
            md.linalg.solve(singular, np.ones(4), method="refine")
        holes = md.Tensor.holding(np.full((4, 4), np.nan), "DEVICE")
        with pytest.raises(NumericError, match=r"solve: a holds nan at \[0, 0\]"):
            md.linalg.solve(holes, np.ones(4), method="refine")


@needs_compiler
def test_calls_of_a_graph_run_one_after_the_other() -> None:
    """The library's handle has memory of its own, which calls beside each other would share."""
    with pytest.MonkeyPatch.context() as patch, emulated_device() as engine:
        patch.setattr(group, "LARGEST", 0)
        arrays = [matrices(5, 5) for _ in range(4)]
        nodes = [node(a) for a in arrays]
        outputs = [f(x) for x in nodes for f in (md.linalg.det, md.linalg.inv)]
        outputs += [md.linalg.qr(x, mode="r") for x in nodes]
        Executable(outputs, executor="native", device="cuda").run(
            dict(zip(nodes, arrays, strict=True))
        )
        graph = engine.graphs[-1].nodes
    before: dict[int, set[int]] = {}
    for number, one in enumerate(graph):
        before[number] = {*one.after}.union(*(before[k] for k in one.after))
    calls = [k for k, one in enumerate(graph) if isinstance(one, MatrixNode)]
    assert len(calls) == 16
    for earlier, later in itertools.pairwise(calls):
        assert earlier in before[later]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_singular_values_alone_of_any_rank(dtype: str, device: str) -> None:
    """By products and eigenvalues on a GPU, which leave out steps where none is small and there are many."""
    shapes = [(2, 141, 133), (133, 141)] + ([] if device == "emulated" else [(1030, 1027)])
    for shape in shapes:
        a = matrices(*shape)
        twins = np.repeat(a[..., ::2], 2, -1)[..., : shape[-1]]
        given = [one.astype(dtype) for one in (a, twins, a[..., :1] * a[..., :1, :])]
        nodes = [node(one) for one in given]
        with on(device):
            found = Executable(
                [md.linalg.svdvals(x) for x in nodes], executor="native", device="cuda"
            ).run(dict(zip(nodes, given, strict=True)))
        for one, values in zip(given, found, strict=True):
            wanted = np.linalg.svd(one.astype(np.float64), compute_uv=False)
            bound = 8 * np.sqrt(max(shape)) * np.finfo(dtype).eps * wanted.max()
            assert (np.diff(values) <= 0).all() and (values >= 0).all()
            assert np.abs(values - wanted).max() <= bound


@pytest.mark.parametrize("shape", [(70, 3), (3, 70), (65, 65), (300, 200)])
def test_singular_vectors_have_room_where_only_values_are_wanted(shape: tuple[int, int]) -> None:
    """Jacobi's method writes them all the same; what lies behind them must stay."""
    sizes = dict(zip(("height", "width"), shape, strict=True), matrices=2)
    values, both = (
        bytes_of_singular(Library("gesdd", "float64", 1, settings=(vectors, False)), sizes)
        for vectors in (False, True)
    )
    assert values[:4] == both[:4]
    assert values[3] == 2 * 8 * min(shape) ** 2


@needs_compiler
def test_complex_matrices_are_computed_on_copies() -> None:
    """The device's library is called with real ones, and with transforms."""
    a = RNG.normal(size=(5, 5)) + 1j * RNG.normal(size=(5, 5)) + 4 * np.eye(5)
    x = node(a)
    with on("emulated"):
        outputs = [md.linalg.inv(x), md.linalg.svdvals(x), md.linalg.det(x), md.fft.fft(x)]
        found = Executable(outputs, executor="native", device="cuda").run({x: a})
    wanted = np.linalg.inv(a), np.linalg.svd(a)[1], np.linalg.det(a), np.fft.fft(a)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
