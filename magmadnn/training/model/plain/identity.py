"""What a training is, in words and digests: a checkpoint goes on only in the training that it is of.

May differ: how many epochs there are, callbacks, what is printed, device and executor.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.data._structure import leaves, take_rows
from magmadnn.data.validation import row_blocks
from magmadnn.graph.node import Node, topological
from magmadnn.graph.op import Array, Op
from magmadnn.layers.layer import LayerCall
from magmadnn.memory.foreign import as_array
from magmadnn.memory.on_demand import OnDemand
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.objective.heads import heads_of

from .architecture import layer_calls

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

_WHOLE = 1 << 24  # bytes of an array of which all rows count
_ROWS = 1024  # of a larger one
_LONGEST = 200  # characters of a setting


def identity_of(
    model: Model, data: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, str]:
    """The aspects of a training by name.

    Args:
        model: with the parameters that training begins with.
        data: arrays, and lists and dicts of them; what comes in batches cannot be compared.
        settings: further arguments of `fit`. Here and in data None is left out.
    """
    heads = heads_of(model)
    found = {f"layer {layer.path}": worded(layer) for layer in model.layers}
    found["connections"] = _connections(model)
    found["loss"] = ", ".join(f"{h.weight:g} * {worded(h.loss)}" for h in heads)
    found["metrics"] = ", ".join(worded(m) for h in heads for m in h.metrics.values())
    found["optimizer"] = worded(model._given)
    found |= {"precision": model.precision, "seed": str(model.seed)}
    found |= {name: worded(value) for name, value in settings.items() if value is not None}
    for name, value in data.items():
        if value is not None:
            found |= {label: _digest(array) for label, array in leaves(value, name)}
    found["initial values"] = parameters_sha256(model.values().items())[:16]
    return found


def worded(value: Any) -> str:
    """A setting as text that is the same in every process: functions by name, arrays by digest."""
    text = _text(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}... {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _text(value: Any) -> str:
    if isinstance(value, Op):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        given = {
            f.name: (_text(getattr(value, f.name)), f.default) for f in fields(value) if f.init
        }
        parts = [f"{k}={v}" for k, (v, d) in given.items() if d is MISSING or v != _text(d)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k!r}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, (FunctionType, type)):
        return value.__qualname__
    if isinstance(value, np.ndarray) and value.ndim:
        return _digest(value)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _connections(model: Model) -> str:
    """A digest of how layers and ops between them follow each other."""
    nodes = topological([o.node for o in model.outputs], layer_calls)
    numbers = {node: k for k, node in enumerate([*(p.node for p in model.inputs), *nodes])}
    lines = [f"{_named(node)} {[numbers[i] for i in layer_calls(node)]}" for node in nodes]
    lines.append(str([numbers[o.node] for o in model.outputs]))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _named(node: Node) -> str:
    if isinstance(node.origin, LayerCall):
        return f"layer {node.origin.layer.path}"
    if isinstance(node.value, np.ndarray):
        return _digest(node.value)
    attributes = {k: _text(v) for k, v in node.attributes.items()}
    return f"{node.op.name} {node.name if node.name else ''} {node.spec} {attributes}"


def _digest(array: Array) -> str:
    """Dtype, shape, and a digest: of all rows, or, where the array is large, of some of all parts."""
    size = array.dtype.itemsize * int(np.prod(array.shape))
    few = size > _WHOLE and len(array) > _ROWS
    rows = np.linspace(0, len(array) - 1, _ROWS).astype(np.int64) if few else None
    if isinstance(array, OnDemand):
        chosen: Any = array if rows is None else array.chosen(rows)
        blocks = (block for _, block in row_blocks(chosen))
    else:
        blocks = iter([as_array(array if rows is None else take_rows(array, rows))])
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block).tobytes())
    values = digest.hexdigest()[:16]
    return f"{array.dtype} {list(array.shape)} {values}"
