"""The base of every layer.

A layer is its fields: a subclass lists them with types and defaults (it becomes a dataclass by itself),
makes its parameters in `build`, and writes its formula in `forward`. Calling a layer on Operations makes
an Operation; nothing is computed. Every class is abstract or final; to change one behaviour, wrap.

    class Scale(md.layers.Layer):
        factor: float = 1.0

        def build(self, x):
            self.gain = self.parameter("gain", x.shape[-1:], md.init.ones(), x.dtype)

        def forward(self, x):
            return self.factor * self.gain * x
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from typing import Any, dataclass_transform

import numpy as np

from magmadnn import ops
from magmadnn.calls import FixedList, Unchanging, check_calls, checked_method
from magmadnn.errors import ArgumentError, FrozenError, GraphError, MagmaDNNError, ShapeError
from magmadnn.graph import scope
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node, with_origin
from magmadnn.graph.signature import shape_text
from magmadnn.memory.dtypes import as_dtype
from magmadnn.tensor import Operation, Variable
from magmadnn.tensor.init import Initializer, by_name
from magmadnn.tensor.lazy import LazyTensor

from .arity import signature_of, takes
from .settings import CURRENT, Changes, KeepsSettings

Regularizer = Callable[[Operation], Operation]


@dataclass(frozen=True)
class ParameterName:
    """The name of a parameter, which follows the name that its layer finally gets."""

    layer: Layer
    local: str

    def __str__(self) -> str:
        return f"{self.layer.path}/{self.local}"


class Parameter(Variable):
    """A variable of a layer: trained, or a state such as running statistics.

    Attributes:
        layer: whose it is.
        local: its name within the layer.
        trained: whether optimisers may change it.
    """

    __slots__ = ("_regularizer", "layer", "local", "trained")

    layer: Layer
    local: str
    trained: bool
    _regularizer: Regularizer | None

    def __init__(
        self,
        layer: Layer,
        local: str,
        storage: LazyTensor,
        regularizer: Regularizer | None,
        trained: bool,
    ) -> None:
        super().__init__(storage.name, storage)
        own = {"layer": layer, "local": local, "_regularizer": regularizer, "trained": trained}
        self.__setstate__((None, own))

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what models, steps and files would differ in."""
        if name in ("layer", "local", "trained"):
            raise FrozenError(
                f"{self.name}: {name} cannot be set, it is chosen when a parameter is made, by "
                "self.parameter(...) in build; layer.trainable = False freezes a layer"
            )
        object.__setattr__(self, name, value)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            object.__setattr__(self, name, value)

    @property
    def regularizer(self) -> Regularizer | None:
        """Adds to the loss in training; None for none. Chosen when the parameter is made."""
        return self._regularizer

    @regularizer.setter
    def regularizer(self, value: Regularizer | None) -> None:
        """Refused: steps that are made would not have it, nor what is saved."""
        setting = f"{self.local}_regularizer"
        way = f'self.parameter("{self.local}", ..., regularizer=...) in build'
        if setting in self.layer._names():
            way = f"{type(self.layer).__name__}(..., {setting}=...)"
        raise FrozenError(
            f"{self.name}: regularizer cannot be set, it is chosen when a parameter is made: make another "
            f"layer, with {way}"
        )

    def prepare(self, seed: int) -> None:
        """Set the seed of initial values that were not drawn yet."""
        storage: LazyTensor = self.node.value
        if not storage.drawn:
            storage.seed = seed


@dataclass(frozen=True)
class LayerCall:
    """Which layer made a node, from which inputs."""

    layer: Layer
    inputs: tuple[Node, ...]

    def renewed(self, nodes: Mapping[Node, Node]) -> LayerCall:
        """The same call in a graph in which nodes have others in their place."""
        return LayerCall(self.layer, tuple(nodes.get(i, i) for i in self.inputs))

    def flattened(self, numbers: Mapping[Node, int]) -> FlatCall:
        """The same call of numbered nodes."""
        return FlatCall(self.layer, tuple(numbers[i] for i in self.inputs))


@dataclass(frozen=True)
class FlatCall:
    """A `LayerCall` without its nodes, as it is copied and pickled."""

    layer: Layer
    inputs: tuple[int, ...]

    def __call__(self, nodes: Sequence[Node]) -> LayerCall:
        """The call of these nodes."""
        return LayerCall(self.layer, tuple(nodes[i] for i in self.inputs))


@dataclass_transform(eq_default=False, field_specifiers=(field,))
@dataclass(eq=False, repr=False)
class Layer(KeepsSettings):
    """Base of layers; see the module's docstring for how to write one.

    Attributes:
        name: in tables, errors and checkpoints; a Model numbers layers without one.
        trainable: False freezes all parameters and floating-point states of the layer.
    """

    name: str | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    _own: list[Parameter] = field(default_factory=lambda: _Own(), init=False)
    _parent: Layer | None = field(default=None, init=False)
    _given: str | None = field(default=None, init=False)  # by a Model, to a layer without a name
    _built: bool = field(default=False, init=False)
    _settled_once: bool = field(default=False, init=False)
    _beside: set[str] = field(default_factory=set, init=False)  # names in its models

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            raise ArgumentError(
                f"{cls.__name__}: a layer has no __init__; list its settings as fields, "
                "such as `factor: float = 1.0`, and make its parameters in build(self, x)"
            )
        dataclass(eq=False, repr=False)(cls)
        check_calls(cls)

    # --- for subclasses ---------------------------------------------------------------------------

    def build(self, *inputs: Any) -> None:
        """Make the parameters; called once, with the first inputs."""

    def forward(self, *inputs: Any) -> Operation:
        """The formula."""
        raise ArgumentError(f"{type(self).__name__}: a layer needs a method forward(self, x)")

    def parameter(
        self,
        name: str,
        shape: Any,
        init: Initializer | str,
        dtype: Any = "float32",
        *,
        regularizer: Regularizer | None = None,
        trained: bool = True,
    ) -> Parameter:
        """A new trained variable of this layer.

        Args:
            name: the name of the field that it is kept in.
            shape: its sizes.
            init: an initialiser of `md.init`, or its name.
            dtype: element type.
            regularizer: a penalty on its values.
            trained: whether optimisers change it.

        Raises:
            ShapeError: if a size is not known.
            UnknownNameError: if there is no initialiser of that name.
            ArgumentError: if init is no initialiser, or the regulariser no function.
        """
        sizes = tuple(shape)
        init = by_name(init) if isinstance(init, str) else init
        self._check_rule(f"init of {name}", init, "md.init.normal()")
        if regularizer is not None:
            self._check_rule(f"regularizer of {name}", regularizer, "md.layers.L2(1e-4)")
        if any(isinstance(size, Dim) for size in sizes):
            raise ShapeError(
                f"{self}: parameter {name} needs known sizes, got {shape_text(sizes)}; "
                "declare them in Input"
            )
        storage = LazyTensor(ParameterName(self, name), sizes, as_dtype(dtype), init)
        made = Parameter(self, name, storage, regularizer, trained)
        self._own.append(made)
        return made

    def _check_rule(self, what: str, rule: Any, example: str) -> None:
        """Raise ArgumentError for an initialiser or a regulariser that is no function."""
        if isinstance(rule, type):
            raise ArgumentError(
                f"{self}: {what} is the class {rule.__name__}, expected an instance: write "
                f"{rule.__name__}(...), such as {example}"
            )
        if not callable(rule) and rule is not None:
            raise ArgumentError(
                f"{self}: {what} must be a function such as {example}, got {rule!r}"
            )

    def state(
        self, name: str, shape: Any, init: Initializer | str, dtype: Any = "float32"
    ) -> Parameter:
        """A new variable that is kept and saved, but not trained."""
        return self.parameter(name, shape, init, dtype, trained=False)

    # --- for users --------------------------------------------------------------------------------

    @checked_method
    def __call__(self, *inputs: Any) -> Operation:
        """The layer applied to Operations, one after the other or in one list.

        Raises:
            GraphError: for something else, or if the formula uses what is neither an input nor the layer's.
            ArgumentError: if it takes another number of inputs.
        """
        if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
            inputs = tuple(inputs[0])
        for value in inputs:
            if not isinstance(value, Operation):
                raise GraphError(
                    f"{self}: expected an Operation, got {type(value).__name__}; start from "
                    "md.layers.Input, or wrap data with md.variable"
                )
        self._check_number(inputs)
        parent = CURRENT.get()
        if parent is not None and self._parent is None and not self._built:
            self._parent = parent
        token = CURRENT.set(self)
        try:
            with scope(self):
                if not self._built:
                    self.build(*inputs)
                    self._built = True
                output = self.forward(*inputs)
                if not isinstance(output, Operation):
                    got = type(output).__name__
                    raise ArgumentError(f"{self}: forward must return an Operation, got {got}")
                result = output.node
                if not result.inputs:  # a leaf stays what it is; the layer's output is a copy of it
                    result = ops.cast(Operation(result), result.dtype).node
                self._settle()
            if parent is None:
                check_closed(self, result, [x.node for x in inputs])
        except MagmaDNNError as error:
            if str(error).startswith(f"{self}: ") or " (in " in str(error):
                raise
            raise type(error)(f"{error} (in {self.path})") from error
        finally:
            CURRENT.reset(token)
        return Operation(with_origin(result, LayerCall(self, tuple([x.node for x in inputs]))))

    def _check_number(self, inputs: Sequence[Operation]) -> None:
        """Whether `build` and `forward` take so many inputs."""
        for method in (self.forward,) if self._built else (self.build, self.forward):
            if takes(method, len(inputs)):
                continue
            taken = signature_of(method)
            try:
                taken.bind(*inputs)
            except TypeError as error:
                raise ArgumentError(
                    f"{self}: takes the inputs ({', '.join(taken.parameters)}), got {len(inputs)}; "
                    "a layer such as md.layers.Concatenate makes one of several"
                ) from error

    @classmethod
    def settings(cls) -> tuple[Field[Any], ...]:
        """The fields that a user gives."""
        if cls not in _settings:
            _settings[cls] = tuple(f for f in fields(cls) if f.init)
        return _settings[cls]

    @classmethod
    def _names(cls) -> dict[str, None]:
        """The names of the settings, in their order."""
        if cls not in _names:
            _names[cls] = dict.fromkeys(part.name for part in cls.settings())
        return _names[cls]

    @property
    def label(self) -> str:
        """The name; the class's name in small letters as long as there is none."""
        return self.name or self._given or snake_case(type(self).__name__)

    @property
    def path(self) -> str:
        """The name, after those of the layers that this one is part of."""
        return f"{self._parent.path}/{self.label}" if self._parent else self.label

    @property
    def is_trainable(self) -> bool:
        """Whether neither this layer nor one that it is part of is frozen."""
        return self.trainable and (self._parent is None or self._parent.is_trainable)

    @property
    def layers(self) -> list[Layer]:
        """The layers that this one is made of: those in its settings, then those that build made."""
        return FixedList(self._parts(), _READ, "layers")

    def _parts(self) -> list[Layer]:
        own, names = vars(self), self._names()
        if own.keys() >= names.keys():  # as of most: to go through all that they hold takes longer
            if _EMPTY.issuperset(map(type, own.values())):
                return []
            held = [name for name, value in own.items() if isinstance(value, _HOLDERS)]
            if _OF_EACH.issuperset(held):
                _note_empty(map(type, own.values()))
                return []
        values = [own[n] if n in own else getattr(self, n) for n in names]
        values += [v for n, v in own.items() if n not in names and n != "_parent"]
        return list(dict.fromkeys(_layers_in(values)))

    def parameters(self) -> Iterator[Parameter]:
        """Everything that the layer keeps, its own before that of its parts, in order of making."""
        yield from self._own
        for inner in self._parts():
            yield from inner.parameters()

    def number_parts(self) -> None:
        """Give names to parts that have none."""
        number_layers(self._parts())

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        given = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in self.settings()
            if getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


_READ = Unchanging(
    "layers of a layer are read from what it holds: make another layer; list(layer.layers) is one's own"
)
_settings: dict[type[Layer], tuple[Field[Any], ...]] = {}
_names: dict[type[Layer], dict[str, None]] = {}
_HOLDERS = (Layer, list, tuple, dict)  # what may hold layers
_OF_EACH = frozenset({"_own", "_parent"})  # of these, what each layer has and are no parts of it


class _Own(list[Parameter]):
    """Parameters of a layer, a list whose type tells that no layers are in it."""


_EMPTY: set[type] = {_Own}  # types of values that hold no layers, as they were met
_MOST_EMPTY = 256


def _note_empty(kinds: Iterable[type]) -> None:
    """Note types of values of a layer without parts."""
    if len(_EMPTY) > _MOST_EMPTY:  # a notebook makes the same classes again and again
        _EMPTY.clear()
        _EMPTY.add(_Own)
    _EMPTY.update(kind for kind in kinds if not issubclass(kind, _HOLDERS))


_ATOMS = frozenset((bool, int, float, str, type(None), np.dtype))  # what most settings are


def _layers_in(values: Iterable[Any]) -> list[Layer]:
    found: list[Layer] = []
    for value in values:
        if type(value) in _ATOMS:
            continue
        if isinstance(value, Layer):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _layers_in(value)
        elif isinstance(value, dict):
            found += _layers_in(value.values())
    return found


def check_closed(layer: Layer, result: Node, inputs: Sequence[Node]) -> None:
    """Nothing, where the result depends on inputs, parameters of the layer and constants alone.

    Raises:
        GraphError: otherwise, since what it takes from elsewhere is neither found for training nor saved.
    """
    own = {p.node for p in layer.parameters()}
    seen, left = {*inputs, *own}, [result]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is VARIABLE:
            raise GraphError(
                f"{layer}: its formula uses the variable {node.label}, which is not the layer's and would "
                "not be trained; make it in build with self.parameter, keep layers as fields or "
                "attributes, or compute this outside of a layer"
            )
        if node.op is PLACEHOLDER:
            raise GraphError(
                f"{layer}: its formula uses {node.label}, which is not one of its inputs; "
                "call the layer with both: layer([a, b])"
            )
        left.extend(node.inputs)


@lru_cache(maxsize=1024)
def snake_case(name: str) -> str:
    """`LayerNorm` as `layer_norm`, `PReLU` as `prelu`, `Conv2D` as `conv2d`."""
    name = re.sub(r"(\d)D", r"\1d", name.replace("ReLU", "Relu"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def number_layers(layers: list[Layer]) -> None:
    """Names for layers without one: class and number, `dense_1`, `dense_2`, in order.

    A layer that has its number already, from another model, keeps it where no other layer here has it; else
    it gets one that is free in both.

    Raises:
        ArgumentError: if two layers were given one name, or a layer is a part of two.
    """
    if not layers:
        return
    taken: dict[str, Layer] = {}
    for layer in layers:
        if layer.name and taken.setdefault(layer.name, layer) is not layer:
            raise ArgumentError(f"layer name {layer.name!r} is used twice; give each its own name")
    unnamed = [layer for layer in layers if not layer.name]
    for layer in unnamed:
        if layer._given and taken.setdefault(layer._given, layer) is not layer:
            layer._given = None
            Changes.names += 1
    counts: dict[str, int] = {}
    for layer in unnamed:
        if layer._given is None:
            base = snake_case(type(layer).__name__)
            used = taken.keys() | layer._beside  # of other models, in which it gets this name too
            while f"{base}_{counts.setdefault(base, 1)}" in used:
                counts[base] += 1
            layer._given = f"{base}_{counts[base]}"
            taken[layer._given] = layer
    _check_parts(layers)
    names = {layer.label for layer in layers}
    for layer in layers:
        layer._beside |= names
        layer.number_parts()


def _check_parts(layers: Sequence[Layer]) -> None:
    owners: dict[Layer, Layer | None] = dict.fromkeys(left := list(layers))
    while left:
        layer = left.pop(0)
        for part in layer._parts():
            if part in owners:
                first = owners[part]
                where = f"a part of {first} and of {layer}" if first else f"also a part of {layer}"
                raise ArgumentError(
                    f"layer {part} is {where}; give each its own, or share it outside of them, "
                    "calling it twice"
                )
            owners[part] = layer
            left.append(part)
