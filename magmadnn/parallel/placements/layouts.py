"""Layouts of weights: what a user says of a layer, in words or layouts of `md.dmath`, and what that means.

said                         ranks compute                 weights between steps
Columns(), Rows(), even      their part of the layer       in that layout
Replicated()                 all of it, or of their rows   whole on each
the same with on=(0, 1)      that, on these ranks alone    in that layout
any other layout             their rows, all of the layer  in that layout
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from magmadnn.errors import ArgumentError, ShapeError, UnknownNameError
from magmadnn.graph.node import Node
from magmadnn.graph.placing import On, ranks_on

from .splits import MODEL, SPLITS, Splittable, chosen, told

if TYPE_CHECKING:
    from magmadnn.comm import Communicator
    from magmadnn.dmath.layouts.layout import Layout

_AUTO = "auto"


def checked(way: str, given: Any) -> dict[str, Any] | None:
    """What a user gives for `layers`; None where layouts are chosen.

    Raises:
        ArgumentError: if it is no dict of words and layouts.
        UnknownNameError: for a word that is none.
    """
    if given is None or (isinstance(given, str) and given == _AUTO):
        return None
    if not isinstance(given, Mapping) or not all(isinstance(k, str) for k in given):
        raise ArgumentError(
            f"{way}: layers must be a dict such as {{'dense_1': 'columns'}}, got {given!r}; None chooses"
        )
    for path, one in given.items():
        if isinstance(one, str):
            if one not in (*SPLITS, MODEL):
                raise UnknownNameError.of(f"{way}: split", one, (*SPLITS, MODEL))
        else:
            _record_of(way, path, one)
    return dict(given)


def _record_of(way: str, path: str, layout: Any) -> Any:
    from magmadnn.dmath.layouts.records import record_of

    return record_of(f"{way}: layers[{path!r}]", layout)


def as_record(way: str, layers: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`layers` as JSON."""
    if layers is None:
        return None
    return {
        path: one if isinstance(one, str) else _record_of(way, path, one)
        for path, one in layers.items()
    }


def from_record(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What `as_record` wrote."""
    if record is None:
        return None
    from magmadnn.dmath.layouts.records import of_record

    return {path: one if isinstance(one, str) else of_record(one) for path, one in record.items()}


class Way(Protocol):
    """How ranks share the work: what a step asks of `ModelParallel`."""

    splits_batches: bool
    computed: Any

    @property
    def layers(self) -> Mapping[str, Any] | None:
        """How layers are split, by their paths; None: chosen."""
        ...

    @property
    def deterministic(self) -> str | None:
        """Whether bits may not depend on layouts: "layout" or None."""
        ...

    def workers(self) -> Communicator:
        """The ranks that train."""
        ...


def splits_of(
    way: Way, layers: Sequence[Splittable], ranks: int
) -> tuple[dict[str, str], dict[str, On]] | None:
    """What each layer is split by, where ranks can compute parts of all layers as they are told; else None.

    Returns:
        a split for each path, and the ranks of layers that only some compute.

    Raises:
        ArgumentError, UnknownNameError: if there is no such layer, or it cannot be split so.
    """
    name = type(way).__name__
    if way.deterministic is not None:
        return None
    if way.layers is None:
        return chosen(name, layers, ranks, way.splits_batches), {}
    some: dict[str, On] = {}
    words, by_path = {}, {str(one.layer.path): one for one in layers}
    for path, said in way.layers.items():
        word = said if isinstance(said, str) else None
        if word is None and path in by_path:
            known = _word(by_path[path], _resolved(name, path, by_path[path].kernel, said, ranks))
            if known is None:
                return None
            word, some[path] = known
        words[path] = word or "data"
    return told(name, layers, words, ranks, some), some


def _resolved(way: str, path: str, node: Node, said: Any, ranks: int) -> Layout:
    from magmadnn.dmath.layouts.recipes import resolve

    shape, what = [int(n) for n in node.shape], f"{way}: layers[{path!r}]"
    try:
        return resolve(said, shape, ranks, node.dtype.itemsize, what)
    except (ArgumentError, ShapeError) as error:
        text = str(error)
        raise type(error)(text if text.startswith(what) else f"{what}: {text}") from None


def _word(one: Splittable, layout: Layout) -> tuple[str, On] | None:
    """What a layout of a kernel is called among `SPLITS`, and on which ranks, where these can compute so."""
    ranks, last = layout.workers, len(layout.shape) - 1
    first = layout.holders[0]
    if all(holders == first for holders in layout.holders):
        return "data", None if len(first) == ranks else first
    on = tuple(holders[0] for holders in layout.holders)
    if len(set(on)) < len(on):  # a rank has several strips
        return None
    for word in one.splits:
        axis = 0 if word == "rows" else last
        if one.fits(word, len(on)) and layout == strips(layout.shape, axis, ranks, on):
            return word, None if on == ranks_on(None, ranks) else on
    return None


def strips(shape: Sequence[int], axis: int, ranks: int, on: On = None) -> Layout:
    """An axis cut in parts that differ by one at most, one on each rank, or on each of some."""
    from magmadnn.dmath.layouts.layout import Layout, even_cuts

    sizes, own = tuple(int(n) for n in shape), ranks_on(on, ranks)
    cuts = tuple(even_cuts(n, len(own)) if i == axis else (0, n) for i, n in enumerate(sizes))
    return Layout(sizes, cuts, tuple((rank,) for rank in own), ranks)


def layouts_of(way: Way, layers: Sequence[Splittable], ranks: int) -> dict[Node, Layout]:
    """Where weights lie between steps that bring them together; those that are not there are whole on each.

    Columns cut the bias too.

    Raises:
        ArgumentError, ShapeError: if there is no such layer, or a layout does not fit its kernel.
    """
    from magmadnn.dmath.layouts.recipes import Columns, Rows

    name, by_path = type(way).__name__, {str(one.layer.path): one for one in layers}
    said = dict(way.layers or {})
    if way.layers is None:
        said, opened = {}, False
        for path, one in by_path.items():
            if one.is_dense:
                said[path], opened = (Rows() if opened else Columns()), not opened
            elif not way.splits_batches:
                said[path] = Columns()
    found: dict[Node, Layout] = {}
    for path, word in said.items():
        if path not in by_path:
            can = ", ".join(by_path) or "none"
            raise ArgumentError(
                f"{name}: layer {path!r} cannot be split; those of this model that can are: {can}"
            )
        one = by_path[path]
        recipe = _recipe(name, one, word) if isinstance(word, str) else word
        if recipe is None:
            continue
        found[one.kernel] = _resolved(name, path, one.kernel, recipe, ranks)
        if one.bias is not None and isinstance(recipe, Columns):
            found[one.bias] = _resolved(name, path, one.bias, recipe, ranks)
    return found


def _recipe(way: str, one: Splittable, word: str) -> Any:
    """What a word means; None for whole weights on each rank."""
    from magmadnn.dmath.layouts.recipes import Columns, Rows

    word = one.splits[0] if word == MODEL else word
    if word == "data":
        return None
    if word not in one.splits:
        kinds = " or ".join(map(repr, one.splits))
        raise ArgumentError(f"{way}: {one.sizes()} cannot be split by {word!r}: it can by {kinds}")
    return Rows() if word == "rows" else Columns()
