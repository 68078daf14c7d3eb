"""Models exported for ARM, in a C program that an emulator runs: bit for bit what predict gives here.

Debian's packages `gcc-aarch64-linux-gnu` and `qemu-user-static` are all that it takes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import GraphError
from tests.layers.layer_cases import CASES
from tests.training.exported import run

Array = np.ndarray[Any, np.dtype[Any]]

COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")

MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int predict(const void *, int64_t, void *);
predict {names};
static predict *const networks[] = {{{names}}};

/* Arguments: which network, samples, bytes of x and of y; x comes in, y goes out. */
int main(int count, char **words) {{
    if (count != 5) return 10;
    size_t nx = atol(words[3]), ny = atol(words[4]);
    char *x = malloc(nx + 1), *y = malloc(ny + 1);
    if (fread(x, 1, nx, stdin) != nx) return 11;
    if (networks[atol(words[1])](x, atol(words[2]), y) != 0) return 12;
    return fwrite(y, 1, ny, stdout) != ny;
}}
"""


def wide(dtype: str) -> md.Model:
    """A network whose products have full tiles and edges, and whose rows are long enough for every walk."""
    x = md.layers.Input((61,), dtype)
    parts = [
        md.layers.Dense(97, activation="gelu"), md.layers.LayerNorm(),
        md.layers.Dense(53, activation="sigmoid"), md.layers.Dense(70, activation="softmax"),
    ]  # fmt: skip
    return md.Model([x, *parts], seed=4)


def models() -> list[tuple[md.Model, Array]]:
    """Models and what they are tried on."""
    made = []
    for case in CASES:
        if not case.others:
            model = case.model()
            made.append((model, case.draw(11)[0].astype(model.inputs[0].dtype)))
    for dtype in ("float32", "float64"):
        given = np.random.default_rng(7).normal(size=(101, 61)).astype(dtype)
        made += [(wide(dtype), given), (wide(dtype), given[:1])]
    return made


@pytest.mark.skipif(
    COMPILER is None or EMULATOR is None,
    reason="no compiler for ARM, or no emulator: apt-get install gcc-aarch64-linux-gnu qemu-user-static",
)
@pytest.mark.parametrize(
    ("cpu", "emulated"), [("cortex-a72", "cortex-a72"), ("neoverse-v2", "max")]
)
def test_every_layer_on_arm(tmp_path: Path, cpu: str, emulated: str) -> None:
    tried: list[tuple[md.Model, Array]] = []
    files: list[Path] = []
    for model, given in models():
        file = tmp_path / f"net_{len(files)}.o"
        try:
            model.export(file, batch_size=64, cpu=cpu)
        except GraphError as error:  # no kernel for it
            assert "so it cannot be in an object file" in str(error)
            continue
        tried.append((model, given))
        files.append(file)
    assert len(tried) > len(CASES) / 2
    names = ", ".join(f"net_{k}_predict" for k in range(len(files)))
    (tmp_path / "main.c").write_text(MAIN.format(names=names))
    assert COMPILER is not None and EMULATOR is not None
    run([COMPILER, "-static", "-o", "main", "main.c", *files], tmp_path)
    for number, (model, given) in enumerate(tried):
        wanted = model.predict(given)
        words = [str(n) for n in (number, len(given), given.nbytes, wanted.nbytes)]
        found = run([EMULATOR, "-cpu", emulated, "./main", *words], tmp_path, given.tobytes())
        assert found == wanted.tobytes(), model.summary()
