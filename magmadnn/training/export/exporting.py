"""Exporting a model: predict as an object file, with a C header and a Fortran module beside it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from magmadnn.data.preparation.preparation import Preparation
from magmadnn.errors import ArgumentError, DTypeError, FileError, shown
from magmadnn.graph.node import Node
from magmadnn.runtime import Executable
from magmadnn.storage.disk import as_path, is_there
from magmadnn.storage.durable import write_file
from magmadnn.storage.input_files import opened
from magmadnn.tensor import Operation

from .exported_scaling import scaling_note, with_scaling
from .interfaces import C_TYPES, Argument, Interface, c_header, fortran_module

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

_ENDINGS = (".o", ".obj")
_LONGEST_NAME = 48  # Fortran takes 63 characters, and names get endings


def export_model(
    model: Model,
    path: str | Path,
    network: Callable[..., Model],
    *,
    name: str | None = None,
    cpu: str | None = None,
    batch_size: int = 256,
    note: str = "",
) -> list[Path]:
    """Write the files that `Model.export` describes; gives their paths. `network`: `Model` itself."""
    place = as_path("export: the file", path)
    if place.suffix not in _ENDINGS:
        raise ArgumentError(f"export: the file name must end in .o, got {str(place)!r}")
    prefix = _prefix(place, name)
    beside = [place.with_suffix(".h"), place.with_suffix(".f90")]
    for file in beside:
        _check_own(file)

    from magmadnn.compiler.llvm.ir.target import host, named
    from magmadnn.compiler.llvm.standalone import object_file
    from magmadnn.runtime.cpu.export.exporter import standalone

    if isinstance(model.preparation, Preparation):
        note = "\n\n".join(filter(None, (note, scaling_note(model.preparation))))
        model = with_scaling(model, model.preparation, network)
    target = host() if cpu is None else named(cpu)
    nodes = [output.node for output in model.outputs]
    plan = Executable(nodes, executor="native", precision=model.precision).native.plan
    what = standalone(plan, [p.node for p in model.inputs], batch_size)
    interface = Interface(
        prefix,
        place.stem,
        tuple(_arguments("x", model.inputs, [x.node for x in model.inputs])),
        tuple(_arguments("y", model.outputs, plan.program.outputs)),
        {symbol: f"n_{_slug(symbol)}" for symbol in what.symbols} | {what.batch: "samples"},
        batch_size,
        f"{target.cpu} ({target.triple})",
        note,
    )
    write_file(place, object_file(what, prefix, target))
    write_file(beside[0], c_header(interface).encode())
    write_file(beside[1], fortran_module(interface).encode())
    return [place, *beside]


def _prefix(place: Path, name: str | None) -> str:
    """What the names of the functions begin with."""
    if name is None:
        name = _slug(place.stem)
        if name and not name[0].isalpha():
            name = f"net_{name}"
        way_out = "give a name: export(..., name='net')"
    else:
        way_out = "begin with a letter, go on with letters, digits and _"
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) or len(name) > _LONGEST_NAME:
        raise ArgumentError(
            f"export: functions cannot be called {name!r}: expected 1 to {_LONGEST_NAME} letters, "
            f"digits and _; {way_out}"
        )
    return name


def _slug(text: str) -> str:
    """Letters, digits and single underscores that are close to the text."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub("[^A-Za-z0-9]+", "_", plain).strip("_")


def _arguments(
    letter: str, values: Sequence[Operation], computed: Sequence[Node]
) -> list[Argument]:
    """One argument for each input or output: `x`, or `x_image`, `x_age` where there are several."""
    found: list[Argument] = []
    for value, node in zip(
        values, computed, strict=True
    ):  # precision may be another than in the model
        label, dtype = value.node.scope or value.name, node.dtype.name
        if dtype not in C_TYPES:
            raise DTypeError(
                f"export: {label} is {dtype}, expected one of {', '.join(C_TYPES)}; convert it with "
                "md.ops.cast"
            )
        name = letter
        if len(values) > 1:
            name = f"{letter}_{_slug(label).lower()[:_LONGEST_NAME]}".rstrip("_")
            taken = {a.name for a in found}
            if name in taken:
                name = next(n for k in range(2, 10**6) if (n := f"{name}_{k}") not in taken)
        found.append(Argument(name, label, node.shape[1:], dtype))
    return found


def _check_own(file: Path) -> None:
    """Refuse to write over a file that somebody wrote by hand."""
    if not is_there(file):
        return
    with opened(file) as stream:
        start = stream.read(200)
    if b"magmadnn" not in start:
        raise FileError(
            f"export: {shown(file)} would be replaced, but magmadnn did not write it; choose another name or "
            "remove it"
        )
