"""Exported models: what C, Fortran and ctypes get is what predict gives, bit for bit."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.llvm import standalone
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.errors import ArgumentError, DTypeError, FileError, GraphError, UnknownNameError
from tests.graph.by_numpy import doubled
from tests.layers.layer_cases import CASES, Case
from tests.training.exported import (
    NEEDS_C,
    NEEDS_FORTRAN,
    STRICT_C,
    STRICT_FORTRAN,
    Exported,
    assert_equal,
    nan_like,
    run,
)

Array = np.ndarray[Any, np.dtype[Any]]

C_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "first.h"
#include "second.h"

/* Reads samples of the first network from standard input, writes what both make of them. */
int main(void) {
    int64_t samples;
    if (fread(&samples, sizeof samples, 1, stdin) != 1) return 10;
    float *x = malloc((samples + 1) * FIRST_X_SIZE * sizeof *x);
    float *y = malloc((samples + 1) * FIRST_Y_SIZE * sizeof *y);
    double *z = malloc((samples + 1) * SECOND_Y_SIZE * sizeof *z);
    double *wide = malloc((samples + 1) * SECOND_X_SIZE * sizeof *wide);
    if (fread(x, sizeof *x * FIRST_X_SIZE, samples, stdin) != (size_t)samples) return 11;
    if (first_predict(x, samples, y) != FIRST_OK) return 12;
    for (int64_t k = 0; k < samples * SECOND_X_SIZE; k++) wide[k] = y[k];
    void *scratch = malloc(second_scratch_bytes(samples));
    if (second_predict_with(wide, samples, z, scratch) != SECOND_OK) return 13;
    fwrite(y, sizeof *y * FIRST_Y_SIZE, samples, stdout);
    fwrite(z, sizeof *z * SECOND_Y_SIZE, samples, stdout);
    free(x), free(y), free(z), free(wide), free(scratch);
    return 0;
}
"""

FORTRAN_PROGRAM = """
program main
  use, intrinsic :: iso_c_binding, only: c_float, c_double, c_int8_t, c_int64_t
  use first, only: first_predict, first_ok, first_x_size, first_y_size
  use second, only: second_predict_with, second_scratch_bytes, second_ok, second_y_size
  implicit none
  integer(c_int64_t) :: samples
  real(c_float), allocatable :: x(:, :), y(:, :)
  real(c_double), allocatable :: z(:, :)
  integer(c_int8_t), allocatable :: scratch(:)

  open (10, file="input", access="stream", form="unformatted", status="old")
  read (10) samples
  allocate (x(first_x_size, samples), y(first_y_size, samples), z(second_y_size, samples))
  allocate (scratch(second_scratch_bytes(samples)))
  read (10) x
  if (first_predict(x, samples, y) /= first_ok) error stop 12
  if (second_predict_with(real(y, c_double), samples, z, scratch) /= second_ok) error stop 13
  open (11, file="output", access="stream", form="unformatted", status="replace")
  write (11) y, z
end program main
"""


def perceptron(inputs: int, outputs: int, dtype: str = "float32", seed: int = 0) -> md.Model:
    """A network with two hidden layers, a batch normalisation that has seen data, and a softmax."""
    relu, tanh = (md.layers.Dense(n, activation=a) for n, a in ((17, "relu"), (5, "tanh")))
    norm = md.layers.BatchNorm()
    parts = [md.layers.Input((inputs,), dtype), relu, norm, tanh]
    made = md.Model([*parts, md.layers.Dense(outputs, activation="softmax")], seed=seed)
    rng = np.random.default_rng(seed)
    made.assign(
        {
            k: (np.abs(rng.normal(size=v.shape)) + 0.1).astype(v.dtype)
            for k, v in made.values().items()
        }
    )
    return made


def moved(inputs: int, outputs: int, dtype: str = "float32", seed: int = 0) -> md.Model:
    """A network with a concatenation, attention over stacks of products, padding, and rounded products."""
    x = md.layers.Input((inputs,), dtype)
    joined = md.ops.concat([x, md.ops.tanh(x), md.layers.Dense(4, activation="relu")(x)], axis=1)
    rows = md.ops.reshape(md.layers.Dense(15)(joined), (-1, 5, 3))
    weights = md.ops.softmax(md.ops.matmul(rows, md.ops.swapaxes(rows, 1, 2)))
    seen = md.ops.reshape(md.ops.matmul(weights, rows), (-1, 15))
    wide = md.ops.pad(seen, ((0, 0), (1, 2)))
    y = md.layers.Dense(outputs)(wide)
    precision = "mixed_bf16" if dtype == "float32" else "float32"
    return md.Model(inputs=[x], outputs=[y], seed=seed, precision=precision)


def samples(count: int, width: int, dtype: str = "float32") -> Array:
    return np.random.default_rng((count, width)).normal(size=(count, width)).astype(dtype)


# --- programs in C and Fortran --------------------------------------------------------------------


@pytest.fixture(scope="module", params=[perceptron, moved])
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, md.Model, md.Model]:
    """A folder with two exported networks, and these."""
    folder = tmp_path_factory.mktemp("two")
    first, second = request.param(13, 3), request.param(3, 7, "float64", seed=1)
    first.export(folder / "first.o", batch_size=8)
    second.export(folder / "second.o", batch_size=8)
    return folder, first, second


def expected(two: tuple[Path, md.Model, md.Model], count: int) -> tuple[bytes, bytes]:
    """What a program reads and what it has to write."""
    _, first, second = two
    x = samples(count, 13)
    y = first.predict(x)
    z = second.predict(y.astype(np.float64))
    return np.int64(count).tobytes() + x.tobytes(), y.tobytes() + z.tobytes()


@NEEDS_C
@pytest.mark.parametrize("count", [1, 7, 8, 9, 101])
def test_c_program(two: tuple[Path, md.Model, md.Model], count: int) -> None:
    folder = two[0]
    (folder / "main.c").write_text(C_PROGRAM)
    objects = ["first.o", "second.o"]
    run([*STRICT_C, "-o", "main", "main.c", *objects, "-Wl,--fatal-warnings"], folder)
    given, wanted = expected(two, count)
    assert run([folder / "main"], folder, given) == wanted


@NEEDS_FORTRAN
@pytest.mark.parametrize("count", [1, 9, 101])
def test_fortran_program(two: tuple[Path, md.Model, md.Model], count: int) -> None:
    folder = two[0]
    (folder / "main.f90").write_text(FORTRAN_PROGRAM)
    sources = ["first.f90", "second.f90", "main.f90", "first.o", "second.o"]
    run([*STRICT_FORTRAN, "-o", "fortran_main", *sources], folder)
    given, wanted = expected(two, count)
    (folder / "input").write_bytes(given)
    run([folder / "fortran_main"], folder)
    assert (folder / "output").read_bytes() == wanted


@NEEDS_C
def test_nothing_but_the_c_library_is_needed(two: tuple[Path, md.Model, md.Model]) -> None:
    names = [line.split()[-2:] for line in run(["nm", "first.o"], two[0]).decode().splitlines()]
    entries = {f"first_{n}" for n in ("predict", "predict_with", "scratch_bytes")}
    assert {name for kind, name in names if kind not in "trURD"} - entries == set()
    assert {name for kind, name in names if kind == "T"} == entries
    libc = {"malloc", "free", "memcpy", "memset", "memmove"}
    assert {name for kind, name in names if kind == "U"} <= libc
    assert not [name for kind, name in names if kind in "bBdDcC"]  # nothing that can be written


@NEEDS_C
def test_header_suits_cpp(two: tuple[Path, md.Model, md.Model]) -> None:
    run(["gcc", "-x", "c++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "first.h"], two[0])


# --- through ctypes -------------------------------------------------------------------------------


@NEEDS_C
@pytest.mark.parametrize("batch_size", [1, 5, 4096])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_number_of_samples(tmp_path: Path, dtype: str, batch_size: int) -> None:
    model = perceptron(11, 4, dtype)
    model.export(tmp_path / "net.o", batch_size=batch_size)
    net = Exported(tmp_path / "net.o", "net")
    assert net.predict([samples(0, 11)], [np.empty(0)]) == 0
    for count in (1, 2, 4, 5, 6, 10, 173):
        x = samples(count, 11, dtype)
        wanted = model.predict(x)
        found = nan_like(wanted)
        assert net.predict([x], found) == 0
        assert_equal(found, wanted)


@NEEDS_C
def test_a_single_output(tmp_path: Path) -> None:
    """Products of one column have a kernel of their own, in `predict` and in the object file."""
    model = md.Model([md.layers.Input((37,)), md.layers.Dense(1, activation="tanh")], seed=3)
    model.export(tmp_path / "net.o")
    net = Exported(tmp_path / "net.o", "net")
    for count in (1, 6, 173):
        x = samples(count, 37)
        wanted = model.predict(x)
        found = nan_like(wanted)
        assert net.predict([x], found) == 0
        assert_equal(found, wanted)


@NEEDS_C
def test_precision_is_that_of_the_model(tmp_path: Path) -> None:
    parts = [md.layers.Input((11,)), md.layers.Dense(17, activation="relu"), md.layers.Dense(4)]
    model = md.Model(parts, precision="float64")
    x = samples(37, 11)
    header = model.export(tmp_path / "net.o")[1].read_text()
    assert "int net_predict(const float *x, int64_t samples, double *y);" in header
    found = nan_like(model.predict(x))
    assert found[0].dtype == np.float64
    assert Exported(tmp_path / "net.o", "net").predict([x], found) == 0
    assert_equal(found, model.predict(x))


def mixed() -> md.Model:
    """Several inputs and outputs, of several dtypes, of unknown length, views and copies among them."""
    a = md.layers.Input((6,), name="age / pressure")
    b = md.layers.Input(("time", 3), "float64", name="signal")
    c = md.layers.Input((), "int64", name="signal")
    hidden = md.layers.Dense(4, activation="relu")(a)
    total = (b * b).sum(axis=-1)
    first = md.layers.Dense(2)(hidden)
    outputs = [
        first,
        total,
        b.transpose((0, 2, 1)),
        first,
        hidden[:, 1:3],
        c,
        md.ops.exp(b[:, :, 1:]),
    ]
    return md.Model(inputs=[a, b, c], outputs=outputs)


@NEEDS_C
def test_inputs_and_outputs_of_all_kinds(tmp_path: Path) -> None:
    model = mixed()
    model.export(tmp_path / "mixed.o", batch_size=4)
    net = Exported(tmp_path / "mixed.o", "mixed")
    rng = np.random.default_rng(3)
    for count in (1, 2, 4, 11):
        for time in (2, 7):
            x = [
                samples(count, 6),
                rng.normal(size=(count, time, 3)),
                rng.integers(-5, 5, count),
            ]
            wanted = model.predict(x)
            found = nan_like(wanted)
            assert net.predict(x, found, [time]) == 0
            assert_equal(found, wanted)


@NEEDS_C
def test_axes_of_unknown_length(tmp_path: Path) -> None:
    """Softmax, extremes, concatenation and padding along them, and what is broadcast in the middle."""
    x = md.layers.Input(("time", 3), name="signal")
    y = md.layers.Input(("late", 3), name="echo")
    attention = md.ops.softmax(md.ops.sum(x * x, axis=-1), axis=-1)
    joined = md.ops.concat([md.ops.tanh(x), y, x[:, 1:]], axis=1)
    outputs = [
        attention,
        md.ops.softmax(x, axis=1),
        x - md.ops.max(x, axis=1, keepdims=True),
        md.ops.min(md.ops.sum(x, axis=-1), axis=-1),
        joined,
        joined.transpose((0, 2, 1)) * 2.0,
        md.ops.argmax(x, axis=2),
        md.ops.pad(x, ((0, 0), (1, 2), (0, 0))),
        md.ops.pad(joined, ((0, 0), (0, 3), (2, 0)), -0.75),
    ]
    model = md.Model(inputs=[x, y], outputs=outputs)
    model.export(tmp_path / "net.o", batch_size=4)
    net = Exported(tmp_path / "net.o", "net")
    rng = np.random.default_rng(3)
    for count, time, late in ((1, 2, 1), (3, 5, 2), (11, 7, 13)):
        fed = [rng.normal(size=(count, n, 3)).astype(np.float32) for n in (time, late)]
        wanted = model.predict(fed)
        found = nan_like(wanted)
        assert net.predict(fed, found, [late, time]) == 0
        assert_equal(found, wanted)
    nothing = ctypes.c_void_p(0)
    sizes = [ctypes.c_int64(n) for n in (1, 3, 0)]  # a time of 0: there is nothing to choose from
    assert net.function("predict")(nothing, nothing, *sizes, *[nothing] * len(outputs)) == 1


@NEEDS_C
def test_memory_of_the_caller(tmp_path: Path) -> None:
    model = perceptron(11, 4)
    model.export(tmp_path / "net.o", batch_size=16)
    net = Exported(tmp_path / "net.o", "net")
    x = samples(37, 11)
    wanted = model.predict(x)
    room = net.scratch_bytes(37)
    assert net.scratch_bytes(16) == room  # it does not grow beyond a batch
    assert 0 < net.scratch_bytes(1) < room
    for shift in (1, 3, 64):
        memory = np.full(shift + room + 64, 0xA5, np.uint8)
        found = nan_like(wanted)
        assert net.predict([x], found, scratch=memory[shift : shift + room]) == 0
        assert_equal(found, wanted)
        assert (memory[:shift] == 0xA5).all()
        assert (memory[shift + room :] == 0xA5).all()


@NEEDS_C
def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    model = perceptron(11, 4)
    model.export(tmp_path / "net.o", batch_size=3)
    net = Exported(tmp_path / "net.o", "net")
    given = [samples(200 + k, 11) for k in range(4)]
    wanted = [model.predict(x) for x in given]
    found = [nan_like(y) for y in wanted]

    def work(number: int) -> None:
        for _ in range(50):
            assert net.predict([given[number]], found[number]) == 0

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, wanted, strict=True):
        assert_equal(one, other)


@NEEDS_C
def test_sizes_out_of_range_are_told(tmp_path: Path) -> None:
    signal = md.layers.Input(("time",), name="signal")
    model = md.Model(inputs=[signal], outputs=[signal[:, 3:] * 2.0])
    model.export(tmp_path / "net.o")
    net = Exported(tmp_path / "net.o", "net")
    function = net.function("predict")
    nothing = ctypes.c_void_p(0)
    for count, time in ((-1, 5), (1, 0), (1, -7)):
        assert function(nothing, ctypes.c_int64(count), ctypes.c_int64(time), nothing) == 1
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    found = nan_like(model.predict(x))
    assert net.predict([x], found, [4]) == 0
    assert_equal(found, model.predict(x))


@NEEDS_C
def test_code_for_another_cpu(tmp_path: Path) -> None:
    model = perceptron(11, 4)
    model.export(tmp_path / "net.o", cpu="x86-64-v3")
    assert "x86-64-v3" in (tmp_path / "net.h").read_text()
    if host().triple.startswith("x86_64") and "+avx2" in host().features:
        x = samples(37, 11)
        found = nan_like(model.predict(x))
        assert Exported(tmp_path / "net.o", "net").predict([x], found) == 0
        assert_equal(found, model.predict(x))
    model.export(tmp_path / "mac.o", cpu="apple-m1")
    assert (tmp_path / "mac.o").read_bytes()[:4] == b"\xcf\xfa\xed\xfe"  # Mach-O


def test_parameters_are_those_of_the_moment(tmp_path: Path) -> None:
    model = perceptron(11, 4)
    files = model.export(tmp_path / "net.o")
    assert [f.name for f in files] == ["net.o", "net.h", "net.f90"]
    before = files[0].read_bytes()
    model.export(tmp_path / "net.o")
    assert files[0].read_bytes() == before  # the same code for the same model
    model.assign({k: v * 2 for k, v in model.values().items()})
    model.export(tmp_path / "net.o")
    assert files[0].read_bytes() != before


@NEEDS_C
def test_movements_row_by_row(tmp_path: Path) -> None:
    """Tables for one row of the result: in place of samples, of their steps in time, and flipped sources."""
    x, w = md.layers.Input(("time", 3)), md.layers.Input((4,), "int64")
    joined = md.ops.concat([x, md.ops.flip(x, 2), x * 2.0], axis=2)
    weights = md.ops.concat([w, md.ops.flip(w, 1)], axis=1)
    outputs = [
        joined,
        md.ops.pad(x, ((0, 0), (0, 0), (2, 1))),
        weights,
        md.ops.stack([w, w], axis=2),
    ]
    model = md.Model(inputs=[x, w], outputs=outputs)
    model.export(tmp_path / "rows.o", batch_size=4)
    net = Exported(tmp_path / "rows.o", "rows")
    rng = np.random.default_rng(5)
    for count, time in ((1, 1), (3, 7), (9, 2)):
        given = [
            rng.normal(size=(count, time, 3)).astype(np.float32),
            rng.integers(-9, 9, (count, 4)),
        ]
        wanted = model.predict(given)
        found = nan_like(wanted)
        assert net.predict(given, found, [time]) == 0
        assert_equal(found, wanted)


@NEEDS_C
@pytest.mark.parametrize(
    "shape", [((5, 6), (5, 6)), ((2, 5, 6), (2, 5, 6)), (("time", 6), ("time", 6))], ids=str
)
def test_products_of_stacks(tmp_path: Path, shape: Any) -> None:
    a, b = (md.layers.Input(s, name=n) for s, n in zip(shape, "ab", strict=True))
    both = md.ops.matmul(a, md.ops.swapaxes(b, -1, -2))
    turned = md.ops.matmul(md.ops.swapaxes(a, -1, -2), b)
    table = md.variable("table", np.arange(12, dtype=np.float32).reshape(6, 2) / 7)
    model = md.Model(inputs=[a, b], outputs=[md.ops.tanh(both) * 0.5, turned, a @ table])
    model.export(tmp_path / "stack.o", batch_size=4)
    net = Exported(tmp_path / "stack.o", "stack")
    rng = np.random.default_rng(5)
    for count, time in ((1, 1), (3, 7), (9, 2)):
        sizes = [time] if "time" in shape[0] else []
        given = [
            rng.normal(size=(count, *(time if n == "time" else n for n in s))).astype(np.float32)
            for s in shape
        ]
        wanted = model.predict(given)
        found = nan_like(wanted)
        assert net.predict(given, found, sizes) == 0
        assert_equal(found, wanted)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "prefix"),
    [
        ("net.o", "net"),
        ("2d-net.v3.o", "net_2d_net_v3"),
        ("Größe.obj", "Große"),
        ("_a__b_.o", "a_b"),
    ],
)
def test_names_follow_the_file(tmp_path: Path, file: str, prefix: str) -> None:
    prefix = prefix.replace("ß", "")
    object_file, header, module = perceptron(3, 2).export(tmp_path / file)
    assert object_file.exists()
    assert f"int {prefix}_predict(" in header.read_text()
    assert f"\nmodule {prefix}\n" in module.read_text()


def test_arguments_are_called_after_inputs_and_outputs(tmp_path: Path) -> None:
    header = mixed().export(tmp_path / "net.o", note="Ages in years. */")[1].read_text()
    for line in (
        "    const float *x_age_pressure,",
        "    const double *x_signal,",
        "    const int64_t *x_signal_2,",
        "    int64_t n_time,",
        "    float *y_dense_2,",
        "    float *y_dense_2_2,",
        ' *   x_signal: input "signal", double[samples][n_time][3]',
        " * Ages in years. * /",
        "#define NET_X_AGE_PRESSURE_SIZE 6 /* elements of a sample */",
    ):
        assert line in header.splitlines(), line


# --- what is refused ------------------------------------------------------------------------------


def test_an_op_without_a_kernel_is_named(tmp_path: Path) -> None:
    x = md.layers.Input((4,))
    with md.graph.scope("embedding_1"):
        model = md.Model(inputs=[x], outputs=[doubled(x)])
    with pytest.raises(
        GraphError, match=r"op \w+ of layer embedding_1 has no native kernel .*way|part"
    ):
        model.export(tmp_path / "net.o")
    assert not list(tmp_path.iterdir())


def test_a_table_that_depends_on_sizes_is_named(tmp_path: Path) -> None:
    x = md.layers.Input((6, "time"))
    every_other = md.grad(md.ops.sum(md.ops.square(x[:, ::2])), x)
    model = md.Model(inputs=[x], outputs=[every_other])
    with pytest.raises(GraphError, match=r"op \w+ of layer \w+ moves .* give inputs fixed shapes"):
        model.export(tmp_path / "net.o")
    assert not list(tmp_path.iterdir())


@NEEDS_C
def test_tables_and_numbers_that_they_do_not_have(tmp_path: Path) -> None:
    model = md.Model([md.layers.Input((4,), "int64"), md.layers.Embedding(7, 3)])
    model.export(tmp_path / "net.o", batch_size=5)
    net = Exported(tmp_path / "net.o", "net")
    x = np.random.default_rng(1).integers(0, 7, (13, 4))
    found = nan_like(model.predict(x))
    assert net.predict([x], found) == 0
    assert_equal(found, model.predict(x))
    for wrong in (-1, 7, 2**60):
        x[11, 2] = wrong
        assert net.predict([x], found) == 3


def test_mistakes(tmp_path: Path) -> None:
    model = perceptron(3, 2)
    with pytest.raises(ArgumentError, match=r"must end in \.o, got '.*/net\.so'"):
        model.export(tmp_path / "net.so")
    with pytest.raises(ArgumentError, match=r"cannot be called ''.*give a name"):
        model.export(tmp_path / "__.o")
    with pytest.raises(ArgumentError, match=r"cannot be called '2d'.*begin with a letter"):
        model.export(tmp_path / "net.o", name="2d")
    with pytest.raises(ArgumentError, match="batch_size must be an integer of at least 1, got 0"):
        model.export(tmp_path / "net.o", batch_size=0)
    with pytest.raises(UnknownNameError, match=r"'x86-64-v9' is not known: did you mean 'x86-64-v"):
        model.export(tmp_path / "net.o", cpu="x86-64-v9")
    (tmp_path / "net.h").write_text("int mine;\n")
    with pytest.raises(FileError, match=r"net\.h would be replaced, but magmadnn did not write it"):
        model.export(tmp_path / "net.o")
    assert [f.name for f in tmp_path.iterdir()] == ["net.h"]


def test_parameters_that_instructions_do_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "_MOST_BYTES", 4 * (3 * 2 + 2) - 1)
    model = md.Model([md.layers.Input((3,)), md.layers.Dense(2)])
    with pytest.raises(
        GraphError, match="parameters take 32 bytes, expected at most 31 in an object"
    ):
        model.export(tmp_path / "net.o")
    assert not list(tmp_path.iterdir())


def test_graphs_that_are_not_functions_of_samples(tmp_path: Path) -> None:
    x = md.placeholder("x", (5, 3))
    with pytest.raises(GraphError, match=r"first axis of input x must be the batch.*got 5"):
        md.Model(inputs=[x], outputs=[x * 2.0]).export(tmp_path / "net.o")
    x = md.layers.Input((3,))
    with pytest.raises(GraphError, match=r"first axis of output .* must be batch"):
        md.Model(inputs=[x], outputs=[x.sum()]).export(tmp_path / "net.o")
    x = md.layers.Input((3,), "float16")
    with pytest.raises((GraphError, DTypeError), match="float16"):
        md.Model(inputs=[x], outputs=[x]).export(tmp_path / "net.o")


# --- every layer ----------------------------------------------------------------------------------


ONE_OF_EACH_CLASS = list({type(case.make()): case for case in reversed(CASES)}.values())


@NEEDS_C
@pytest.mark.parametrize(
    "cases", [ONE_OF_EACH_CLASS, pytest.param(CASES, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_every_layer(cases: list[Case], tmp_path: Path) -> None:
    """All layers in one library each; those without a kernel say so."""
    refused = []
    for number, case in enumerate(cases):
        model = case.model()
        file = tmp_path / f"layer_{number}.o"
        try:
            model.export(file, batch_size=5)
        except GraphError as error:
            assert "so it cannot be in an object file" in str(error)
            refused.append(case.name)
            continue
        given = [drawn.astype(model.inputs[0].dtype) for drawn in case.draw(11)]
        wanted = model.predict(given)
        found = nan_like(wanted)
        assert Exported(file, f"layer_{number}").predict(given, found) == 0, case.name
        assert_equal(found, wanted)
    assert len(refused) < len(cases) / 4, refused


@NEEDS_C
def test_values_that_are_copied_into_another_layout(tmp_path: Path) -> None:
    x = md.layers.Input(("time", 3), "float64")
    turned = x.transpose((0, 2, 1))  # [batch, 3, time]
    outputs = [md.ops.exp(turned), md.ops.sin(turned.reshape((-1, 3 * x.shape[1])))]
    model = md.Model(inputs=[x], outputs=outputs)
    model.export(tmp_path / "turned.o", batch_size=4)
    net = Exported(tmp_path / "turned.o", "turned")
    for count, time in ((1, 1), (3, 7), (9, 2)):
        given = np.random.default_rng(count).normal(size=(count, time, 3))
        wanted = model.predict(given)
        found = nan_like(wanted)
        assert net.predict([given], found, [time]) == 0
        assert_equal(found, wanted)
