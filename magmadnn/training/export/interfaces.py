"""The C header and the Fortran module of an exported model, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magmadnn.graph.dim import Dim, Shape, Size, product, substitute

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
_FORTRAN_TYPES = {
    "float32": ("real", "c_float"),
    "float64": ("real", "c_double"),
    "int32": ("integer", "c_int32_t"),
    "int64": ("integer", "c_int64_t"),
    "uint8": ("integer", "c_int8_t"),
    "bool": ("logical", "c_bool"),
}
_STATUS = (
    ("ok", 0, "done"),
    ("wrong_size", 1, "a size is out of range"),
    ("no_memory", 2, "malloc found none"),
    ("wrong_row", 3, "an input numbers a row of a table that is not there"),
)
_WIDTH = 96
_FORTRAN_WIDTH = 120  # of 132 that are allowed


@dataclass(frozen=True)
class Argument:
    """An input or output.

    Attributes:
        name: in C and Fortran.
        label: in the model.
        shape: of one sample.
        dtype: of an element.
    """

    name: str
    label: str
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Interface:
    """What header and module tell.

    Attributes:
        prefix: what names of functions begin with.
        stem: what names of files begin with.
        inputs: in order.
        outputs: in order.
        sizes: names of the arguments that hold sizes, by symbol; the batch comes last.
        batch_size: samples that are computed at a time.
        machine: what the code runs on.
        note: the user's own text.
    """

    prefix: str
    stem: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    sizes: Mapping[str, str]
    batch_size: int
    machine: str
    note: str

    @property
    def size_names(self) -> list[str]:
        """Arguments that hold sizes, the number of samples first."""
        names = list(self.sizes.values())
        return [names[-1], *names[:-1]]

    def size(self, size: Size) -> str:
        """A size as an expression over arguments, in C and Fortran alike."""
        renamed = {symbol: Dim.symbol(name) for symbol, name in self.sizes.items()}
        text = str(substitute(size, renamed))
        return f"({text})" if " " in text else text

    def fixed(self) -> list[tuple[str, int]]:
        """Arguments whose samples have a known number of elements, and that number."""
        counted = [(a.name, product(a.shape)) for a in (*self.inputs, *self.outputs)]
        return [(name, count) for name, count in counted if isinstance(count, int)]


_REMARKS = """\
Link with {stem}.o; nothing else is needed but the C library. Made for {machine}.

Inputs and outputs are those of predict of the model that was exported: data is scaled, and logits become \
probabilities, only where that model does it. Arrays are contiguous, {order}, and do not overlap.

Any number of samples is taken, {batch_size} at a time. {prefix}_predict takes its temporary memory from \
malloc and gives it back; {prefix}_predict_with uses yours: {prefix}_scratch_bytes({sizes}) bytes, at any \
address, that nobody else uses meanwhile.

The functions keep nothing between calls: any number of threads may call them at the same time. Each \
call runs on one thread."""

_ORDERS = {"C": "in row-major order", "Fortran": "the first index running fastest"}


def _remarks(interface: Interface, language: str) -> list[str]:
    """What has to be known to call the functions, as paragraphs."""
    own = interface
    text = _REMARKS.format(
        stem=own.stem, machine=own.machine, order=_ORDERS[language], batch_size=own.batch_size,
        prefix=own.prefix, sizes=", ".join(own.size_names),
    )  # fmt: skip
    return text.split("\n\n")


def _listed(interface: Interface, describe: Mapping[str, str]) -> list[str]:
    """A line for each argument."""
    own = interface
    lines = [f'{a.name}: input "{_plain(a.label)}", {describe[a.name]}' for a in own.inputs]
    lines += ["samples: how many there are"]
    lines += [f"{n}: size {s}" for s, n in own.sizes.items() if n != "samples"]
    return lines + [
        f'{a.name}: output "{_plain(a.label)}", {describe[a.name]}' for a in own.outputs
    ]


def _plain(text: str) -> str:
    """Text that ends no comment and no line."""
    return "".join(c if c.isprintable() else " " for c in text).replace("*/", "* /")


def _paragraphs(interface: Interface, describe: Mapping[str, str], language: str) -> list[str]:
    """All lines of the comment, wrapped."""
    lines: list[str] = []
    for text in _remarks(interface, language)[:1]:
        lines += [*_filled(text), ""]
    lines += [*("  " + line for line in _listed(interface, describe)), ""]
    for text in _remarks(interface, language)[1:]:
        lines += [*_filled(text), ""]
    for line in interface.note.splitlines():
        lines += _filled(_plain(line)) or [""]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


# --- C --------------------------------------------------------------------------------------------


def c_header(interface: Interface) -> str:
    """The header."""
    own = interface
    guard = f"MAGMADNN_{own.prefix.upper()}_H"
    describe = {
        a.name: C_TYPES[a.dtype] + "[samples]" + "".join(f"[{own.size(n)}]" for n in a.shape)
        for a in (*own.inputs, *own.outputs)
    }
    given = [
        *(f"const {C_TYPES[a.dtype]} *{a.name}" for a in own.inputs),
        *(f"int64_t {name}" for name in own.size_names),
        *(f"{C_TYPES[a.dtype]} *{a.name}" for a in own.outputs),
    ]
    sizes = [f"int64_t {name}" for name in own.size_names]
    comment = _paragraphs(own, describe, "C")
    upper = own.prefix.upper()
    return "\n".join(
        [
            f"/* {own.stem}.h: a network that magmadnn exported.",
            " *",
            *(f" * {line}".rstrip() for line in comment),
            " */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            "#include <stdbool.h>",
            "#include <stdint.h>",
            "",
            *(f"#define {upper}_{s.upper()} {n} /* {words} */" for s, n, words in _STATUS),
            *(
                f"#define {upper}_{name.upper()}_SIZE {count} /* elements of a sample */"
                for name, count in own.fixed()
            ),
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            _prototype(f"int {own.prefix}_predict", given),
            _prototype(f"int {own.prefix}_predict_with", [*given, "void *scratch"]),
            _prototype(f"int64_t {own.prefix}_scratch_bytes", sizes),
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            "#endif",
            "",
        ]
    )


def _prototype(start: str, arguments: Sequence[str]) -> str:
    line = f"{start}({', '.join(arguments)});"
    if len(line) <= _WIDTH:
        return line
    return f"{start}(\n    " + ",\n    ".join(arguments) + ");"


# --- Fortran --------------------------------------------------------------------------------------


def fortran_module(interface: Interface) -> str:
    """The module, with interfaces that are bound to the C functions."""
    own = interface
    describe = {
        a.name: f"{_fortran_type(a)} ({_extents(own, a)})" for a in (*own.inputs, *own.outputs)
    }
    kinds = {"c_int", "c_int8_t", "c_int64_t"}
    kinds |= {_FORTRAN_TYPES[a.dtype][1] for a in (*own.inputs, *own.outputs)}
    names = ", ".join(sorted(kinds))
    public = [f"{own.prefix}_{s}" for s, _, _ in _STATUS]
    public += [f"{own.prefix}_{name}_size" for name, _ in own.fixed()]
    public += [f"{own.prefix}_{n}" for n in ("predict", "predict_with", "scratch_bytes")]
    return "\n".join(
        [
            f"! {own.stem}.f90: a network that magmadnn exported.",
            "!",
            *(f"! {line}".rstrip() for line in _paragraphs(own, describe, "Fortran")),
            f"module {own.prefix}",
            f"  use, intrinsic :: iso_c_binding, only: {names}",
            "  implicit none",
            "  private",
            *_wrapped("  public :: ", public),
            "",
            *(
                f"  integer(c_int), parameter :: {own.prefix}_{s} = {n} ! {words}"
                for s, n, words in _STATUS
            ),
            *(
                f"  integer, parameter :: {own.prefix}_{name}_size = {count} ! elements of a sample"
                for name, count in own.fixed()
            ),
            "",
            "  interface",
            *_procedure(own, "predict", names, scratch=False),
            "",
            *_procedure(own, "predict_with", names, scratch=True),
            "",
            *_scratch_bytes(own),
            "  end interface",
            f"end module {own.prefix}",
            "",
        ]
    )


def _fortran_type(argument: Argument) -> str:
    kind, parameter = _FORTRAN_TYPES[argument.dtype]
    return f"{kind}({parameter})"


def _extents(interface: Interface, argument: Argument) -> str:
    """The shape in Fortran's order."""
    return ", ".join([*map(interface.size, reversed(argument.shape)), "samples"])


def _procedure(interface: Interface, name: str, kinds: str, *, scratch: bool) -> list[str]:
    own = interface
    names = [*(a.name for a in own.inputs), *own.size_names, *(a.name for a in own.outputs)]
    names += ["scratch"] if scratch else []
    full = f"{own.prefix}_{name}"
    lines = [
        *_wrapped(f"    function {full}(", names, f') bind(c, name="{full}") result(status)'),
        f"      import :: {kinds}",
        *_wrapped("      integer(c_int64_t), value :: ", own.size_names),
    ]
    for words, arguments in (("in", own.inputs), ("out", own.outputs)):
        lines += [
            f"      {_fortran_type(a)}, intent({words}) :: {a.name}({_extents(own, a)})"
            for a in arguments
        ]
    if scratch:
        lines.append("      integer(c_int8_t), intent(inout) :: scratch(*)")
    return [*lines, "      integer(c_int) :: status", f"    end function {full}"]


def _scratch_bytes(interface: Interface) -> list[str]:
    full, names = f"{interface.prefix}_scratch_bytes", interface.size_names
    return [
        *_wrapped(f"    function {full}(", names, f') bind(c, name="{full}") result(bytes)'),
        "      import :: c_int64_t",
        *_wrapped("      integer(c_int64_t), value :: ", names),
        "      integer(c_int64_t) :: bytes",
        f"    end function {full}",
    ]


def _wrapped(start: str, items: Iterable[str], end: str = "") -> list[str]:
    """A statement with a list in it, continued on further lines where it is long."""
    text = start + ", ".join(items) + end
    lines = textwrap.wrap(text, _FORTRAN_WIDTH, break_long_words=False, break_on_hyphens=False)
    indent = " " * (len(start) - len(start.lstrip()))
    last = len(lines) - 1
    return [
        (indent + ("  " if k else "") + line.strip() + (" &" if k < last else ""))
        for k, line in enumerate(lines)
    ]
