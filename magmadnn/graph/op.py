"""The record that says everything about one kind of operation.

An `Op` is data: leaving a required field out is a `TypeError` at import, and there is nothing to
override. Calling an op is the only door into the graph: it checks, infers, and then either computes (for
concrete values) or makes a `Node`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.errors import ArgumentError, DTypeError, UnknownNameError
from magmadnn.memory.dtypes import as_dtype, is_complex, is_floating, refuse_masked

from .computed_by import LibraryCall, OwnKernel
from .dim import dims_of
from .operators import FUNCTIONS
from .origins import is_again, note_origin
from .signature import Attributes, OpWords, ShapeRule
from .spec import Spec

Array = NDArray[Any]
_PLAIN = (bool, int, str)  # kinds of attributes of which equal ones mean the same
_REMEMBERED = 64  # shapes and dtypes of operands, for each op
DTypeRule = Callable[[OpWords, Sequence["np.dtype[Any]"], Attributes], "np.dtype[Any]"]


class OpKind(Enum):
    """What the compiler needs to know of an op; it never asks for a name."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    MOVEMENT = "movement"  # every element of the result is one element of an operand, or a constant
    GATHER = "gather"  # slices of the first operand along `axis`, as the second numbers them
    SCATTER = "scatter"  # its transpose: `count` slices, sums of those of the first operand
    KERNEL = "kernel"  # a kernel of its own, see `Op.kernel`
    LIBRARY = "library"  # a library's function, of each matrix or of all, see `Op.library`
    RANDOM = "random"  # depends on a counter, see `Op.draws`
    LOOP = "loop"  # runs its attribute `body` (`body.py`) `length` times; has several results
    RESULT = "result"  # the result number `index` of its operand, which has several
    COLLECTIVE = "collective"  # depends on other ranks' values; all run the same ones in order
    OTHER = "other"


@dataclass(frozen=True)
class NoGradient:
    """Says that an op has no gradient, and why."""

    why: str


@dataclass(frozen=True)
class Sample:
    """Operands and attributes on which an op is tried by the contract tests."""

    operands: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Draw(Protocol):
    """What `Op.samples` gets: makes arrays of given shapes, with values that tell mistakes apart."""

    def __call__(self, *shape: int, low: float = ..., high: float = ...) -> Array:
        """Real numbers between low and high, none of them near zero."""
        ...

    def integers(self, *shape: int, low: int = ..., high: int = ...) -> Array:
        """Integers from low up to but not including high."""
        ...

    def positive(self, *shape: int) -> Array:
        """Real numbers well above zero."""
        ...


MANY_ELEMENTS = 1 << 20  # of which reductions are made of parts, as their sizes say
REGISTRY: dict[str, Op] = {}
_FOR_COMPLEX: set[str] = set()


def takes_complex(*ops: Op) -> None:
    """Tell of ops that they take complex numbers too, and that where the result is complex `vjp` is that of a
    function that is differentiable in them. Movements and gathers take any numbers.
    """
    _FOR_COMPLEX.update(op.name for op in ops)


def _is_for_complex(op: Op) -> bool:
    return op.kind in (OpKind.MOVEMENT, OpKind.GATHER) or op.name in _FOR_COMPLEX


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """One operation: formula, shapes, forward, gradient, reference and samples.

    Attributes:
        name: public name, `md.ops.NAME`.
        args: names of the operands; a last one written `*xs` takes a list.
        formula: what is computed, as text.
        kind: what the compiler may do with it.
        shapes: rule that gives the result's shape, or raises `ShapeError`.
        dtypes: rule that gives the result's dtype, or raises `DTypeError`.
        numpy: forward on ndarrays: `numpy(*operands, **attributes)`.
        vjp: gradient written in ops: `vjp(g, y, *operands, **attributes)` gives one gradient for each
            operand (None where there is none), in the operand's shape or one that broadcasts from it; or a
            list of several, which are added up.
        at_once: the same as `numpy` by faster means, for arrays that are there, where it has any; None for
            others: `at_once(*operands, **attributes)`.
        on_gpu: whether an eager call on Tensors in a GPU's memory is computed there (`tensor/eager`).
        reference: the same in float64, written differently on purpose; for tests.
        samples: operands to try it on.
        attributes: names and default values of the attributes; `REQUIRED` for no default.
        canonical: brings attributes to one hashable form, given the operands' specs.
        scalar: the formula over scalars, for pointwise ops.
        contracts: the primitive (see `scalar`) that combines elements of a contracted axis: "add".
        draws: what an op of random numbers draws: "uniform" for numbers in [0, 1) of Philox, where the
            only operand is the number of the stream, the attribute `seed` the key, and element i the
            i-th of the stream; None for anything else.
        integers: names of operands that are counted with (indices, classes), or that only tell which
            (conditions): they take no part in promotion.
        places: how many places these may number, from 0: `places(*operands, **attributes)` on nodes; for
            ops with `decompose`, whose kernels cannot raise for an index that is out of range.
        boxes: for movements: which parts of the result come from where, as
            `boxes(result, *operands, **attributes)` on arrays whose elements mean nothing.
            It gives pairs: a view of the result, and (number of an operand, view of it in the same shape) or
            the number that all its elements are; the views of the result are all of it, each element once.
            Without it the operand itself is seen through `numpy`, which must be a view of it, or else each
            element is looked at once for each set of sizes.
        rewrites: rules that may replace a node of this op by a simpler one of equal value, bit for bit:
            `rewrite(node)` gives the new node, or None where it does not apply.
        stable: rules that may replace a node of this op by one of the same value that keeps more digits:
            `rule(node)` gives the new node, or None where it does not apply.
        decompose: the same as other ops: `decompose(*operands, **attributes)` on nodes; for ops that are
            made of pointwise ones and reductions. None where operands keep it whole.
        by_library: the same by functions of libraries, or by further algorithms, by their name: taken in
            place of `decompose` where the target has one; gives None for operands that it does not take.
            "tf32": what suits a library that may multiply float32 as TF32.
            "ranks": ops whose axes ranks can share, for an op whose own axes they cannot.
        library: the function that computes it, for ops of kind `LIBRARY`.
        kernel: what computes it, for ops of kind `KERNEL`.
        masked: for results of which some may become 0 before others are: `masked(node, y)` gives a node equal
            to this one where y is above 0 and 0 elsewhere, bit for bit; None where it cannot.
        in_halves: whether mixed precision rounds the first operand, and a result of real numbers, as those of
            products: they are stored in half precision then.
        absorbs: functions of libraries that also do what follows, by their name: `make(node, epilogue)` gives
            the node with an `Epilogue` (`epilogue.py`), None where the function does not take it.
        joins: functions of libraries that compute it together with what it is made of, by their name:
            `joins(node, program)` gives nodes of equal values for it and others; none where they stay.
        stacked: the same for many models at once, whose operands have an axis of models in front:
            `stacked(call)` gives the node of the result, which has that axis too, from a `StackedCall`
            (`stacking.py`). None: there is a node for each model.
        axes: which axes of operands and result are the same one, for ops whose shape rule does not say it:
            `axes(specs, attributes)` gives `Axes` (`placing/axes.py`); None: operands must be whole.
        arrives: for collectives: whether it only waits for what another op began, so that whatever does not
            need it comes before it.
        on_device: for collectives: `on_device(**attributes)` gives the GPUs that call each other (`Gpus`) and
            the kind of their call on the first operand, or None where a GPU has nothing to do. None: the host
            does it.
        any_size: whether gradient, rewrites and parts are the same for all sizes from 16 on, as long as no
            operand of known shape has `MANY_ELEMENTS`.
        notes: more for the documentation: source, special values.
    """

    name: str
    args: tuple[str, ...]
    formula: str
    kind: OpKind
    shapes: ShapeRule
    dtypes: DTypeRule
    numpy: Callable[..., Array]
    vjp: Callable[..., Any] | NoGradient
    reference: Callable[..., Any]
    samples: Callable[[Draw], Iterable[Sample]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    canonical: Callable[..., Attributes] | None = None
    scalar: Callable[..., Any] | None = None
    contracts: str | None = None
    draws: str | None = None
    integers: tuple[str, ...] = ()
    places: Callable[..., Any] | None = None
    boxes: Callable[..., Iterable[tuple[Array, Any]]] | None = None
    rewrites: tuple[Callable[..., Any], ...] = ()
    stable: tuple[Callable[..., Any], ...] = ()
    decompose: Callable[..., Any] | None = None
    by_library: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    library: LibraryCall | None = None
    kernel: OwnKernel | None = None
    masked: Callable[[Any, Any], Any] | None = None
    in_halves: bool = False
    absorbs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    joins: Mapping[str, Callable[..., Mapping[Any, Any]]] = field(default_factory=dict)
    stacked: Callable[[Any], Any] | None = None
    axes: Callable[[Sequence[Spec], Attributes], Any] | None = None
    any_size: bool = False
    arrives: bool = False
    on_device: Callable[..., Any] | None = None
    at_once: Callable[..., Array | None] | None = None
    on_gpu: bool = False
    notes: str = ""
    in_graphs: ClassVar[Any] = None  # `Node`, which gives itself
    # settled attributes and Spec of the result, by shapes and dtypes of operands
    _known: dict[tuple[Any, ...], tuple[Attributes, Spec]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        known = FUNCTIONS.get(self.name)
        if known is not None and not is_again(known, self):
            raise ArgumentError(f"op {self.name!r} exists already; give yours another name")
        REGISTRY[self.name] = self
        FUNCTIONS[self.name] = self
        note_origin(self.name, self.numpy)
        object.__setattr__(self, "__doc__", f"{self.formula}\n\n{self.notes}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        return _known_op, (self.name,)  # there is one of each name

    @cached_property
    def words(self) -> OpWords:
        """What error messages say of this op; a leading underscore is nothing that users wrote."""
        return OpWords(self.name.lstrip("_"), self.args, self.formula, self.integers)

    @cached_property
    def _has_more(self) -> bool:
        """Whether a call has more than one argument for each operand."""
        return bool(self.attributes) or self.args[-1].startswith("*")

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        """Compute now (arrays, numbers, Tensors), or make an Operation where an operand is one."""
        operands, attributes = self.bind(args, attributes)
        handler: Any = None
        most = -2
        for x in operands:  # the first with the highest priority: Node 0, Tensor 10, Operation 20
            priority: int = getattr(type(x), "__magmadnn_priority__", -1)
            if priority > most:
                handler, most = type(x), priority
        if most < 0:
            if not any(dims_of(tuple(attributes.values()))):
                return self.compute(as_arrays(self.words, operands), attributes)
            handler = Op.in_graphs  # sizes that are not known yet need one
        return handler.__magmadnn_apply__(self, operands, attributes)

    def bind(
        self, args: Sequence[Any], attributes: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Operands and attributes from a call's arguments: operands first, attributes in order."""
        count = len(self.args)
        if len(args) == count and not attributes and not self._has_more:
            return list(args), {}
        name, named = self.words.name, dict(attributes)
        if len(args) > count + len(self.attributes):
            raise ArgumentError(
                f"{name}: takes {count} operands and {len(self.attributes)} attributes, "
                f"got {len(args)} arguments"
            )
        operands = list(args[:count])
        for operand in self.args[len(operands) :]:
            if (key := operand.lstrip("*")) not in named:
                raise ArgumentError(f"{name}: operand {key} is missing: {self.formula}")
            operands.append(named.pop(key))
        if self.args[-1].startswith("*"):
            operands += _listed(name, self.args[-1][1:], operands.pop())
        return operands, self._attributes(args[count:], named)

    def _attributes(self, extra: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes, from those given in order and by name, and the defaults."""
        name = self.words.name
        given = dict(zip(self.attributes, extra, strict=False))
        for key in named:
            if not self.attributes:
                raise ArgumentError(f"{name}: takes no {key}, only {', '.join(self.args)}")
            if key not in self.attributes:
                raise UnknownNameError.of(f"{name}: attribute", key, self.attributes)
            if key in given:
                raise ArgumentError(f"{name}: {key} is given twice")
        bound = {**self.attributes, **given, **named}
        for key, value in bound.items():
            if value is REQUIRED:
                raise ArgumentError(f"{name}: {key} is missing: {self.formula}")
        return bound

    def settle(self, specs: Sequence[Spec], attributes: Mapping[str, Any]) -> Attributes:
        """The attributes in their one form.

        Raises:
            ArgumentError: if one cannot be hashed.
        """
        if self.canonical is not None:
            attributes = self.canonical(self.words, specs, **attributes)
        settled = {key: _frozen(value) for key, value in attributes.items()}
        for key, value in settled.items():
            if not isinstance(value, Hashable):
                raise ArgumentError(
                    f"{self.words.name}: attribute {key} must be a number, text or tuple of them, got "
                    f"{type(value).__name__}; give arrays as operands"
                )
        return settled

    def infer(self, specs: Sequence[Spec], attributes: Attributes) -> Spec:
        """Shape and dtype of the result, for settled attributes.

        Raises:
            ShapeError, DTypeError: if the operands do not fit.
        """
        if any(is_complex(s.dtype) for s in specs) and not _is_for_complex(self):
            raise DTypeError(
                f"{self.words.name}: takes no complex numbers; give their real, imag or abs: "
                f"{', '.join(f'{self.words.operand(k)} {s.dtype.name}' for k, s in enumerate(specs))}"
            )
        shape = self.shapes(self.words, specs, attributes)
        return Spec(shape, self.dtypes(self.words, [s.dtype for s in specs], attributes))

    def inferred(
        self, operands: Sequence[Spec | Array], attributes: Mapping[str, Any]
    ) -> tuple[Attributes, Spec]:
        """Settled attributes, shape and dtype of the result; those of operands that came before are kept.

        Raises:
            ArgumentError, ShapeError, DTypeError: as `settle` and `infer`.
        """
        looks: tuple[Any, ...] = tuple([(a.shape, a.dtype) for a in operands])
        if attributes:  # those that are equal, as 1 and True, may not mean the same
            kinds = tuple((name, type(value), value) for name, value in attributes.items())
            looks += kinds if all(kind in _PLAIN for _, kind, _ in kinds) else (None,)
        known = None if looks[-1] is None else self._known.get(looks)
        if known is None:
            specs = [Spec(a.shape, a.dtype) for a in operands]
            settled = self.settle(specs, attributes)
            known = settled, self.infer(specs, settled)
            if looks[-1] is not None:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[looks] = known
        return known

    def compute(self, arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        """Check and compute with NumPy; operands like some that were checked before are not checked again."""
        settled, spec = self.inferred(arrays, attributes)
        if self.at_once is not None:
            found = self.at_once(*arrays, **settled)
            if found is not None:
                return found
        return self.forward(arrays, settled, spec.dtype)

    def forward(self, arrays: Sequence[Array], settled: Attributes, dtype: np.dtype[Any]) -> Array:
        """The NumPy forward; special values come out as values, not as warnings."""
        with np.errstate(all="ignore"):
            result = np.asarray(self.numpy(*arrays, **settled))
            return result if result.dtype == dtype else result.astype(dtype)


def _known_op(name: str) -> Op:
    """The op of a copied or pickled graph.

    Raises:
        UnknownNameError: if this process has none of that name.
    """
    if name not in REGISTRY:
        raise UnknownNameError.of("a pickled graph: op", name, REGISTRY)
    return REGISTRY[name]


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


def _listed(name: str, operand: str, values: Any) -> list[Any]:
    """The operands of an op that takes a list."""
    if not isinstance(values, (list, tuple)) or not values:
        raise ArgumentError(f"{name}: {operand} must be a list of one or more")
    return list(values)


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that attributes can be compared and hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def is_number(value: object) -> bool:
    """Whether it is a Python number, whose dtype follows its peers; NumPy's scalars have their own."""
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def as_arrays(words: OpWords, operands: Sequence[Any]) -> list[Array]:
    """Operands as ndarrays; Python numbers take the dtype that NumPy's promotion gives them."""
    arrays = [None if is_number(x) else as_array(words, i, x) for i, x in enumerate(operands)]
    whole = [a for a in arrays if a is not None]
    if len(whole) == len(arrays):
        return whole
    dtypes = number_dtypes(words, operands, [None if a is None else a.dtype for a in arrays])
    with np.errstate(over="ignore"):  # a number beyond float16 becomes infinity, as in NumPy
        return [
            _as_number(words, x, dtype) if a is None else a
            for x, a, dtype in zip(operands, arrays, dtypes, strict=True)
        ]


def _as_number(words: OpWords, number: Any, dtype: np.dtype[Any]) -> Array:
    """A Python number in a dtype; ml_dtypes takes no large integers."""
    try:
        return np.asarray(float(number) if is_floating(dtype) else number, dtype)
    except OverflowError:
        raise DTypeError(f"{words.name}: {number} does not fit into {dtype.name}") from None


def as_array(words: OpWords, number: int, value: Any) -> Array:
    """An operand as an ndarray of a dtype that magmadnn has, in this machine's byte order.

    Raises:
        DTypeError, DataError: naming the operand; if elements are masked.
    """
    refuse_masked(words.name, value)
    try:
        dtype = as_dtype((array := np.asarray(value)).dtype)
        return array if array.dtype is dtype else array.astype(dtype, copy=False)
    except (DTypeError, ValueError) as error:  # ValueError: a list of lists of unequal lengths
        what = type(value).__name__
        why = error if isinstance(error, DTypeError) and hasattr(value, "dtype") else f"got {what}"
        raise DTypeError(
            f"{words.name}: {words.operand(number)} must be numbers (array, Tensor, Operation): {why}"
        ) from error


def number_dtypes(
    words: OpWords, operands: Sequence[Any], dtypes: Sequence[np.dtype[Any] | None]
) -> list[np.dtype[Any]]:
    """The dtype of each operand, where that of Python numbers (None in `dtypes`) follows the others."""
    counts = [words.operand(i) in words.integers for i in range(len(operands))]
    peers = [d for d, count in zip(dtypes, counts, strict=True) if d is not None and not count]
    return [
        weak_dtype(words, x, [] if count else peers) if d is None else d
        for x, d, count in zip(operands, dtypes, counts, strict=True)
    ]


def weak_dtype(
    words: OpWords, number: bool | int | float | complex, peers: Sequence[np.dtype[Any]]
) -> np.dtype[Any]:
    """The dtype of a Python number beside operands of dtypes `peers` (NumPy 2's weak promotion)."""
    rank = 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2
    if isinstance(number, complex):
        return np.result_type(*peers, np.complex64) if peers else np.dtype(np.complex128)
    dtype: np.dtype[Any] = np.dtype(("bool", "int64", "float64")[rank])
    if peers:
        common = promote(words, peers)
        if rank <= {"b": 0, "u": 1, "i": 1}.get(common.kind, 2):
            dtype = common
    if rank == 1 and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise DTypeError(f"{words.name}: {number} does not fit into {dtype.name}")
    return dtype


def promote(
    words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes | None = None
) -> np.dtype[Any]:
    """The dtype that NumPy promotes to; the dtype rule of most ops."""
    try:
        return as_dtype(np.result_type(*dtypes))
    except TypeError as error:
        names = " and ".join(d.name for d in dtypes)
        raise DTypeError(f"{words.name}: {names} have no common dtype; cast one of them") from error


def promote_floating(
    words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes
) -> np.dtype[Any]:
    """As `promote`, with float64 for integers; the dtype rule of ops that divide."""
    dtype = promote(words, dtypes)
    return np.dtype(np.float64) if dtype.kind in "iub" else dtype


def fixed_dtype(name: str) -> DTypeRule:
    """The rule that always gives one dtype."""

    def rule(
        words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes
    ) -> np.dtype[Any]:
        return as_dtype(name)

    return rule
