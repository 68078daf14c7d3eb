"""What is fed: checked against the placeholders, with the sizes of symbolic dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.formula import DTYPES, KEPT
from magmadnn.errors import GraphError, ShapeError
from magmadnn.graph.body import is_of_step
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import PLACEHOLDER, Node
from magmadnn.graph.op import Array
from magmadnn.graph.program import Program
from magmadnn.graph.signature import axes_text, shape_text
from magmadnn.memory import dtypes
from magmadnn.memory.dtypes import is_floating
from magmadnn.memory.foreign import OnDevice, as_array, on_device

_REMEMBERED = 64  # sets of shapes and dtypes


class Bindings:
    """`bind` for many runs of a program: arrays like some that were bound before are not looked at again."""

    def __init__(self, program: Program, device: int | None = None) -> None:
        self._program, self._device = program, device
        self._sizes: dict[tuple[Any, ...], dict[str, int]] = {}

    def __call__(self, feeds: Mapping[Node, Any]) -> tuple[Mapping[Node, Any], dict[str, int]]:
        """What `bind` gives, and its errors."""
        looks: list[Any] = []
        for node, value in feeds.items():
            if type(value) is np.ndarray or (
                type(value) is OnDevice and value.device == self._device
            ):
                looks += (node, value.dtype, value.shape)
        key = tuple(looks)
        known = self._sizes.get(key)
        if known is not None and len(key) == 3 * len(feeds):
            return feeds, known
        fed, sizes = bind(self._program, feeds, self._device)
        if len(key) == 3 * len(feeds) and all(fed[node] is feeds[node] for node in fed):
            if len(self._sizes) >= _REMEMBERED:
                self._sizes.clear()
            self._sizes[key] = sizes
        return fed, sizes


def bind(
    program: Program, feeds: Mapping[Node, Any], device: int | None = None
) -> tuple[dict[Node, Any], dict[str, int]]:
    """The fed arrays in their placeholders' dtypes, and the sizes of symbolic dimensions.

    With `device`, arrays that lie there as they are needed are `OnDevice`; all others come to the host.

    Raises:
        GraphError: if a placeholder is not fed, or something else is.
        ShapeError: if an axis has another size than declared, or than another feed gave it.
        DTypeError: if the dtype cannot be converted without changing its kind.
        DataError: if an integer does not fit into a smaller type.
    """
    for node in program.placeholders:
        if node not in feeds and is_of_step(node):
            raise GraphError(
                f"{node.name} of a loop (md.scan) has a value in its steps only: return what is needed of a "
                "step as an output of the body"
            )
        if node not in feeds:
            raise GraphError(
                f"placeholder {node.name} {shape_text(node.shape)} is not fed: "
                f"give {{{node.name}: array}}"
            )
    fed = {node: converted(node, value, device) for node, value in feeds.items()}
    sizes: dict[str, int] = {}
    givers: dict[str, str] = {}
    for node, array in fed.items():
        _bind_shape(node, array, sizes, givers)
    for node, array in fed.items():  # now that all symbols have sizes: 2*batch and the like
        _check_composed(node, array, sizes)
    for dim in program.open_sizes:
        dim.bind(sizes)
    return fed, sizes


def converted(node: Node, value: Any, device: int | None) -> Any:
    """The array in the placeholder's dtype; with `device` on that where it lies there.

    Raises:
        GraphError, DTypeError, DataError: as `bind`.
    """
    if node.op is not PLACEHOLDER:
        raise GraphError(f"only placeholders can be fed, got {node!r}")
    if device is not None and (there := on_device(value, device)) is not None:
        if there.dtype == node.dtype:
            return there
        if _can_convert_there(there.dtype, node.dtype):
            from .cuda.data import arrays

            return arrays.converted(there, node.dtype)
    array = value if isinstance(value, np.ndarray) else as_array(value)
    return dtypes.converted(f"placeholder {node.name}", array, node.dtype)


def _can_convert_there(dtype: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Whether a device can convert without looking at values: no integer becomes a smaller one."""
    known = dtype.name in KEPT and to.name in DTYPES
    both_float = is_floating(dtype) and is_floating(to)
    return known and (both_float or np.can_cast(dtype, to, "safe"))


def _bind_shape(node: Node, array: Array, sizes: dict[str, int], givers: dict[str, str]) -> None:
    """Check the axes of known size; note and compare the sizes of symbols."""
    if array.ndim != node.ndim:
        raise ShapeError(
            f"placeholder {node.name}: expected {axes_text(node.ndim)}, got {array.ndim}: "
            f"{_whole(node, array)}"
        )
    for axis, (expected, got) in enumerate(zip(node.shape, array.shape, strict=True)):
        if not isinstance(expected, Dim):
            if expected != got:
                raise ShapeError(
                    f"placeholder {node.name}: axis {axis} must be {expected}, got {got}: "
                    f"{_whole(node, array)}"
                )
        elif expected.is_symbol:
            symbol = str(expected)
            if sizes.setdefault(symbol, got) != got:
                raise ShapeError(
                    f"placeholder {node.name}: axis {axis} ({symbol}) is {got}, "
                    f"but {sizes[symbol]} in {givers[symbol]}; make them equal"
                )
            givers.setdefault(symbol, str(node.name))


def _whole(node: Node, array: Array) -> str:
    return f"expected {shape_text(node.shape)}, got {shape_text(array.shape)}"


def _check_composed(node: Node, array: Array, sizes: Mapping[str, int]) -> None:
    for axis, (expected, got) in enumerate(zip(node.shape, array.shape, strict=True)):
        if isinstance(expected, Dim) and not expected.is_symbol and expected.bind(sizes) != got:
            raise ShapeError(
                f"placeholder {node.name}: axis {axis} must be {expected} = {expected.bind(sizes)}, "
                f"got {got}: expected {shape_text(node.shape)}, got {shape_text(array.shape)}"
            )
