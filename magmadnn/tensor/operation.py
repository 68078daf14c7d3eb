"""Operation: the user's handle on a node of the graph. Nothing is computed until it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import unwrap
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from magmadnn.calls import checked_call, checked_method
from magmadnn.errors import ArgumentError, GraphError, ShapeError, quoted
from magmadnn.graph import node as nodes
from magmadnn.graph.dim import Dim, Shape
from magmadnn.graph.op import Array, Op, is_number
from magmadnn.graph.operators import FUNCTIONS, OF_NUMPY, Operators, path_of_numpy
from magmadnn.graph.signature import is_integer, shape_text
from magmadnn.graph.spec import Spec
from magmadnn.memory import MANAGED, Kind
from magmadnn.memory.dtypes import as_dtype, converted, refuse_masked
from magmadnn.memory.foreign import as_array

from .init import Initializer
from .lazy import LazyTensor
from .tensor import Tensor

if TYPE_CHECKING:
    from magmadnn.runtime import Executable

Feeds = Mapping["Operation", Any] | Mapping[nodes.Node, Any]

# Functions of NumPy whose work another of ours does.
_NEAR = {
    "dot": "matmul", "vdot": "matmul", "inner": "matmul", "tensordot": "einsum", "outer": "einsum",
    "kron": "einsum", "trace": "einsum", "vecdot": "einsum", "amax": "max", "amin": "min", "average": "mean",
    "nansum": "sum", "nanmean": "mean", "ravel": "reshape", "append": "concat", "hstack": "concat",
    "vstack": "concat", "column_stack": "concat", "fliplr": "flip", "flipud": "flip", "diff": "subtract",
    "cumulative_sum": "cumsum", "moveaxis": "transpose", "matrix_transpose": "swapaxes",
    "vector_norm": "norm", "matrix_norm": "norm", "diagonal": "einsum", "diag": "einsum", "dstack": "concat",
    "block": "concat", "nanmax": "max", "nanmin": "min", "nanprod": "prod", "nanstd": "std", "nanvar": "var",
}  # fmt: skip


class Operation(Operators):
    """A lazy value. Operators and `md.ops` make new Operations from it.

    `.eval()`, `float()` and `np.asarray` compute it. It is hashed by identity, so that it can be a key of
    feeds; `md.ops.equal` compares elements, and `==` with another Operation is an error.
    """

    __slots__ = ("__weakref__", "_executables", "node")
    __magmadnn_priority__: ClassVar[int] = 20

    def __init__(self, node: nodes.Node) -> None:
        if not isinstance(node, nodes.Node):
            raise ArgumentError(
                f"Operation: expected a node of a graph, got {type(node).__name__}: values become "
                'Operations by md.variable("w", values), what is fed by md.placeholder("x", shape)'
            )
        self.node = node
        self._executables: dict[bool, Executable] = {}

    def __getstate__(self) -> Any:
        """Slots, without what was compiled."""
        state: tuple[None, dict[str, Any]] = super().__getstate__()  # type: ignore[assignment]  # has slots
        return None, state[1] | {"_executables": {}}

    @classmethod
    def __magmadnn_apply__(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Operation:
        given = [x.node for x in operands if isinstance(x, Operation)]
        if len(given) != len(operands):
            given = nodes.as_nodes(op.words, operands)
        return Operation(nodes.record(op, given, attributes))

    @property
    def shape(self) -> Shape:
        """Ints, and symbols such as `batch` for sizes that are not known yet."""
        return self.node.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.node.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.node.spec.ndim

    @property
    def name(self) -> str:
        """The given name, or that of the op."""
        return self.node.label

    @checked_method
    def eval(self, feeds: Feeds | None = None, *, training: bool = False) -> Tensor:
        """Compute the value.

        Args:
            feeds: arrays for the placeholders that this depends on: `{x: array}`.
            training: compute what training would (dropout, batch statistics); running statistics are then
                updated as well.

        Raises:
            GraphError, ShapeError, DTypeError: if the feeds do not fit.
        """
        if (executable := self._executables.get(training)) is None:
            # Imported late, with the compiler: `import magmadnn` does without.
            from magmadnn.runtime import Executable

            executable = self._executables[training] = Executable(
                [self.node], training=training, executor="native"
            )
        return Tensor.wrap(executable.run(as_feeds(feeds))[0])

    def numpy(self, feeds: Feeds | None = None) -> Array:
        """The value as an array."""
        return np.asarray(self.eval(feeds))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """Functions of NumPy that are ours too would lose the graph here; others get the values."""
        name = OF_NUMPY.get(function.__name__, function.__name__)
        name = _NEAR.get(name, name)
        if path := path_of_numpy(function, name):
            full_name = f"{function.__module__}.{function.__name__}".replace("numpy", "np", 1)
            raise GraphError(
                f"{full_name} does not take {type(self).__name__}s: "
                f"use {path}, or np.asarray(x) for the values"
            )
        return unwrap(function)(*args, **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.eval(), dtype=dtype)

    def __float__(self) -> float:
        return float(self.eval().item())

    def __int__(self) -> int:
        return int(self.eval().item())

    def __format__(self, spec: str) -> str:
        """`f"{loss:.3f}"` computes the value; without a format it is what `str` gives."""
        return format(self.eval(), spec) if spec else str(self)

    def __eq__(self, other: object) -> Any:
        """Numbers are compared by elements, as arrays are; another Operation could be meant either way.

        Raises:
            GraphError: for another Operation.
        """
        if self is other:
            return True
        self._refuse_to_compare(other)
        return FUNCTIONS["equal"](self, other) if is_number(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        """See `__eq__`."""
        if self is other:
            return False
        self._refuse_to_compare(other)
        return FUNCTIONS["not_equal"](self, other) if is_number(other) else NotImplemented

    __hash__ = object.__hash__  # so that it can be a key

    def _refuse_to_compare(self, other: object) -> None:
        if isinstance(other, Operation):
            raise GraphError(
                f"{self!r} and {other!r} are compared: write md.ops.equal(x, y) to compare elements, "
                "x is y to ask whether they are one and the same"
            )

    def __setitem__(self, key: Any, value: Any) -> None:
        raise GraphError(
            f"elements of {self!r} cannot be set: write variable.value[...] = x, or use md.ops.where"
        )

    def __bool__(self) -> bool:
        raise GraphError(
            f"the truth of {self!r} is not known before it is computed: use .eval(), or md.ops.where"
        )

    def __len__(self) -> int:
        if not self.shape or isinstance(self.shape[0], Dim):
            raise ShapeError(f"{self!r} has no known length")
        return int(self.shape[0])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.node.spec}>"


class Variable(Operation):
    """An Operation that holds a Tensor and can be trained."""

    __slots__ = ()

    def __init__(
        self, name: object = None, storage: Tensor | LazyTensor | None = None, *more: Any
    ) -> None:
        if more or not isinstance(storage, (Tensor, LazyTensor)):
            raise _no_variable(name, storage)
        super().__init__(nodes.variable(name, Spec(storage.shape, storage.dtype), storage))

    @property
    def value(self) -> Tensor:
        """The Tensor that it holds."""
        storage: Tensor | LazyTensor = self.node.value
        return storage.tensor if isinstance(storage, LazyTensor) else storage

    def assign(self, value: Any) -> None:
        """Give it new values of the same shape; numbers are converted as those that are fed.

        Raises:
            ShapeError: if the shape differs, or lists in a list differ in length.
            DTypeError: if numbers would become some of a narrower kind: real, whole or truth values.
            DataError: if an integer does not fit into the dtype, or elements are masked.
        """
        array = value if isinstance(value, np.ndarray) else as_array(value)
        if array.shape != self.shape:
            raise ShapeError(
                f"variable {self.name}: expected shape {shape_text(self.shape)}, "
                f"got {shape_text(array.shape)}"
            )
        self.node.value.write(converted(f"variable {self.name}", array, self.dtype))


def _no_variable(name: object, storage: object) -> ArgumentError:
    """The error for what `Variable` is not made of."""
    named = next((x for x in (name, storage) if isinstance(x, str)), "w")
    given = name if storage is None else storage
    return ArgumentError(
        f"Variable: expected a name and a Tensor, got {type(given).__name__}: variables of arrays, numbers "
        f"and shapes are made by md.variable({quoted(named)}, values)"
    )


class Placeholder(Operation):
    """An Operation that is fed: `y.eval({x: array})`."""

    __slots__ = ()


def as_feeds(feeds: Feeds | None) -> dict[nodes.Node, Any]:
    """Feeds by node.

    Raises:
        GraphError: if something other than a placeholder is fed.
    """
    if feeds is not None and not isinstance(feeds, Mapping):
        raise GraphError(f"feeds are a dict {{placeholder: array}}, got {type(feeds).__name__}")
    fed = {}
    for key, value in (feeds or {}).items():
        node = key if isinstance(key, nodes.Node) else getattr(key, "node", None)
        if not isinstance(node, nodes.Node) or node.op is not nodes.PLACEHOLDER:
            raise GraphError(f"only placeholders can be fed, got {key!r}")
        fed[node] = value
    return fed


@checked_call
def variable(
    name: str,
    value: Any,
    init: Initializer | str | None = None,
    dtype: Any = None,
    *,
    kind: Kind = MANAGED,
    seed: int = 0,
) -> Variable:
    """A variable.

    Args:
        name: shown in graphs and errors, and part of the stream of its random initial values.
        value: a tuple is a shape; an array or Tensor gives the values with their dtype (a Tensor is
            shared, an array copied); a number makes a scalar.
        init: initial values for a shape; zeros where it is left out.
        dtype: float32 for a shape or a number; an array is converted where it is given.
        kind: of the memory.
        seed: of the initial values.

    Raises:
        ArgumentError: for a list, which could be either.
    """
    if not isinstance(name, str):
        raise ArgumentError(
            f"variable: name must be text, got {quoted(name)}; the shape comes second"
        )
    if isinstance(value, list):
        raise ArgumentError(
            f"variable {name}: a list could be a shape or values: write a tuple for a shape, "
            "np.array([...]) for values"
        )
    if isinstance(value, tuple):
        return Variable(name, Tensor(value, init, dtype or "float32", kind, seed=seed, name=name))
    if init is not None:
        raise ArgumentError(f"variable {name}: init needs a shape, but values were given")
    if isinstance(value, Tensor) and dtype in (None, value.dtype):
        return Variable(name, value)
    number = is_number(value)
    refuse_masked(f"variable {name}", value)
    array = np.asarray(value, dtype=as_dtype(dtype or "float32") if number or dtype else None)
    return Variable(name, Tensor.holding(array, kind))


def _listed(name: str, shape: Any) -> Sequence[Any]:
    """A shape as a sequence; a single size is one of one axis."""
    if shape is None or isinstance(shape, (str, Dim)) or is_integer(shape):
        return (shape,)
    if not isinstance(shape, Iterable):
        raise ShapeError(f"placeholder {name}: expected a shape such as (None, 3), got {shape!r}")
    return tuple(shape)


@checked_call
def placeholder(name: str, shape: Sequence[Any], dtype: Any = "float32") -> Placeholder:
    """A value that is fed.

    Args:
        name: shown in graphs and errors.
        shape: ints; None or a name for a size that is known only when it is fed. None on the first axis is
            `batch`; equal names must be fed equal sizes.
        dtype: what feeds are converted to.

    Raises:
        ShapeError: for negative sizes.
    """
    sizes: list[Any] = []
    for axis, size in enumerate(_listed(name, shape)):
        if size is None:
            sizes.append(Dim.symbol("batch" if axis == 0 else f"{name}.{axis}"))
        elif isinstance(size, str):
            sizes.append(Dim.symbol(size))
        elif isinstance(size, Dim):
            sizes.append(size)
        elif is_integer(size):
            sizes.append(int(size))
        else:
            raise ShapeError(
                f"placeholder {name}: a size is an integer, a name or None, got {size!r}"
            )
    if any(isinstance(s, int) and s < 0 for s in sizes):
        raise ShapeError(f"placeholder {name}: sizes must not be negative, got {tuple(shape)}")
    return Placeholder(nodes.placeholder(name, Spec(tuple(sizes), as_dtype(dtype))))


def by_phase(training: Operation, prediction: Operation) -> Operation:
    """`training` while training, `prediction` otherwise; both of one shape and dtype."""
    return Operation(nodes.phase(training.node, prediction.node))


def with_update(passed: Operation, target: Variable, value: Operation) -> Operation:
    """`passed`; while training, each run also gives the variable `target` the new value `value`.

    Where a graph updates a variable several times, each update starts from what the one before has left (the
    order is that in which the graph is computed); all else reads the variable as it was before the run.
    """
    return Operation(nodes.update(passed.node, target.node, value.node))
