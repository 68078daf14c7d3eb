"""Which parameters are split among ranks, and along which axis.

    split      kernel of Dense [k, units]    bias       what each rank has of the result
    columns    Shard(1)                      Shard(0)   its units
    rows       Shard(0)                      whole      a term of a sum over inputs
    channels   Shard(last) of a convolution  Shard(0)   its filters

Of a layer that is computed on some of the ranks all parameters lie on these, whole or split.

Columns and then rows need one sum for two layers, as what lies between them is computed part by part
(M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.graph.node import Node, topological
from magmadnn.graph.placing import On, Placement, Replicate, Shard, ranks_on
from magmadnn.layers import Conv1D, Conv2D, Conv3D, Dense
from magmadnn.layers.layer import Layer, ParameterName
from magmadnn.tensor import Operation

SPLITS = ("data", "columns", "rows", "channels")
MODEL = "model"


@dataclass(frozen=True)
class Splittable:
    """A layer whose kernel can be split.

    Attributes:
        layer: the layer.
        kernel: its weights.
        bias: added to its result; None where it has none.
    """

    layer: Layer
    kernel: Node
    bias: Node | None

    @property
    def is_dense(self) -> bool:
        """Whether it is a Dense layer, else a convolution."""
        return isinstance(self.layer, Dense)

    def fits(self, split: str, ranks: int) -> bool:
        """Whether ranks have equal parts."""
        if split == "data":
            return True
        return split in self.splits and self._size(split) % ranks == 0

    @property
    def splits(self) -> tuple[str, ...]:
        """What a layer of its kind can be split by."""
        return ("columns", "rows") if self.is_dense else ("channels",)

    def _size(self, split: str) -> int:
        return int(self.kernel.shape[0 if split == "rows" else -1])

    def placements(self, split: str, on: On = None) -> dict[Node, Placement]:
        """How its parameters are placed; those that are not there are whole on each rank."""
        whole = None if on is None else Replicate(on)
        kernel: Placement | None = whole
        bias: Placement | None = whole
        if split != "data" and (on is None or len(on) > 1):
            kernel = Shard(0 if split == "rows" else self.kernel.ndim - 1, on)
            bias = whole if split == "rows" else Shard(0, on)
        both = (self.kernel, kernel), (self.bias, bias)
        return {node: one for node, one in both if node is not None and one is not None}

    def sizes(self) -> str:
        """What there is to split, for messages."""
        last = self.kernel.shape[-1]
        if self.is_dense:
            return f"{self.layer.path} ({self.kernel.shape[0]} inputs, {last} units)"
        return f"{self.layer.path} ({last} filters)"


def splittable(roots: Sequence[Node], parameters: Sequence[Node]) -> list[Splittable]:
    """The layers that can be split, in the order of computation."""
    trained, found = set(parameters), {}
    by_layer: dict[Layer, dict[str, Node]] = {}
    for node in topological(roots):
        if node in trained and isinstance(node.name, ParameterName):
            by_layer.setdefault(node.name.layer, {})[node.name.local] = node
    for layer, own in by_layer.items():
        one_group = getattr(layer, "groups", 1) == 1
        if isinstance(layer, (Dense, Conv1D, Conv2D, Conv3D)) and one_group and "kernel" in own:
            found[layer] = Splittable(layer, own["kernel"], own.get("bias"))
    return list(found.values())


def chosen(way: str, layers: Sequence[Splittable], ranks: int, only_dense: bool) -> dict[str, str]:
    """What each layer is split by, where nobody says it: columns and rows in turns.

    Raises:
        ArgumentError: if no layer can be split.
    """
    found = dict.fromkeys((str(one.layer.path) for one in layers), "data")
    found |= dense_in_turns(layers, {}, ranks)
    for one in layers:
        if not only_dense and not one.is_dense and one.fits("channels", ranks):
            found[str(one.layer.path)] = "channels"
    if ranks > 1 and all(split == "data" for split in found.values()):
        there = ", ".join(one.sizes() for one in layers) or "none of Dense, Conv1D, Conv2D, Conv3D"
        raise ArgumentError(
            f"{way}: no layer can be split among {ranks} ranks: {there}; give layers sizes that {ranks} "
            "divides, or use DataParallel"
        )
    return found


def dense_in_turns(
    layers: Sequence[Splittable], counts: Mapping[str, int], ranks: int
) -> dict[str, str]:
    """What Dense layers are split by: columns and rows in turns, where sizes allow it.

    Args:
        layers: that can be split, in the order of computation.
        counts: how many ranks compute a layer, by path; all where nothing is said.
        ranks: how many there are.
    """
    found: dict[str, str] = {}
    columns_on = 0  # how many ranks have columns of the Dense layer before
    for one in layers:
        if one.is_dense:
            count = counts.get(str(one.layer.path), ranks)
            order = ("rows", "columns") if columns_on == count else ("columns", "rows")
            is_whole = count == 1 < ranks
            split = "data" if is_whole else next((s for s in order if one.fits(s, count)), "data")
            columns_on = count if split == "columns" else 0
            found[str(one.layer.path)] = split
    return found


def told(
    way: str, layers: Sequence[Splittable], given: Mapping[str, str], ranks: int,
    some: Mapping[str, On] | None = None,
) -> dict[str, str]:  # fmt: skip
    """What each layer is split by, as the user says; layers that are not named are not split.

    Args:
        way: what is asked, for messages.
        layers: that can be split.
        given: a split for paths of layers.
        ranks: how many there are.
        some: the ranks of layers that only some compute, by path.

    Raises:
        UnknownNameError: if there is no such layer, or no such split.
        ArgumentError: if a layer cannot be split so.
    """
    by_path = {str(one.layer.path): one for one in layers}
    found = dict.fromkeys(by_path, "data")
    for path, split in given.items():
        if path not in by_path:
            can = ", ".join(by_path) or "none"
            raise ArgumentError(
                f"{way}: layer {path!r} cannot be split; those of this model that can are: {can}"
            )
        one, parts = by_path[path], len(ranks_on((some or {}).get(path), ranks))
        if split == MODEL:
            split = next((s for s in one.splits if one.fits(s, parts)), one.splits[0])
        if split not in SPLITS:
            raise UnknownNameError.of(f"{way}: split", str(split), (*SPLITS, MODEL))
        if not one.fits(split, parts):
            kinds = " or ".join(map(repr, one.splits))
            raise ArgumentError(
                f"{way}: {one.sizes()} cannot be split by {split!r} among {parts} ranks: it can by {kinds}, "
                f"where {parts} divides the size"
            )
        found[path] = split
    return found


def placements_of(
    layers: Sequence[Splittable], splits: Mapping[str, str], some: Mapping[str, On]
) -> dict[Node, Placement]:
    """How parameters are placed; those that are not there are whole on each rank.

    Args:
        layers: that can be split.
        splits: of each, by path.
        some: the ranks of layers that only some compute, by path.
    """
    found: dict[Node, Placement] = {}
    for one in layers:
        path = str(one.layer.path)
        found |= one.placements(splits[path], some.get(path))
    return found


def within(layers: Sequence[Splittable], some: Mapping[str, On]) -> dict[object, On]:
    """The ranks of layers that only some compute, by layer."""
    found = {one.layer: some.get(str(one.layer.path)) for one in layers}
    return {layer: on for layer, on in found.items() if on is not None}


def with_slots(
    placements: Mapping[Node, Placement],
    parameters: Mapping[str, Node],
    slots: Mapping[str, Operation],
) -> dict[Node, Placement]:
    """The optimiser's slots of a parameter are placed as it is.

    Args:
        placements: of parameters.
        parameters: by what stands before the slash in names of slots.
        slots: by name.
    """
    found = dict(placements)
    for name, slot in slots.items():
        of = parameters.get(name.rsplit("/", 1)[0])
        if of is not None and of in placements and slot.shape == of.shape:
            found[slot.node] = placements[of]
    return found
