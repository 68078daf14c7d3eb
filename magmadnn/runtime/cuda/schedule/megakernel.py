"""Launches of a small network made one kernel of one block, for one step or for many."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.compiler.cuda.fused.step_ends import Fetch, KeepAll
from magmadnn.compiler.cuda.megakernel.feed import Feed
from magmadnn.compiler.cuda.megakernel.places import Argument, GlobalAddress, Named, SharedAddress
from magmadnn.compiler.cuda.megakernel.whole import Copied, Piece, WholeVariant
from magmadnn.compiler.cuda.text.function import Part
from magmadnn.compiler.cuda.text.variant import Launch

from .hazards import Span, edges_of
from .launch import Item

_THREADS = 256
_ALIGNMENT = 16


def levels_of(items: Sequence[Item]) -> list[list[Item]]:
    """Launches in levels, each of which depends on earlier ones only."""
    levels: list[int] = []
    for after in edges_of([(item.reads, item.writes) for item in items]):
        levels.append(1 + max((levels[k] for k in after), default=-1))
    found: list[list[Item]] = [[] for _ in range(max(levels, default=-1) + 1)]
    for item, level in zip(items, levels, strict=True):
        found[level].append(item)
    return found


class _Places:
    """Where the parts of one kernel find what launches find in the device's memory.

    Values of a step lie in shared memory. What steps have in common with others, data and outputs that are
    kept, stays where it is.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.addresses: dict[int, int] = {}  # and the numbers of the parameters
        self.homes: dict[
            int, int
        ] = {}  # first addresses of values, and where these are in shared memory
        self._ends: dict[int, int] = {}
        self.nbytes = 0
        for item in items:
            for span in (*item.reads, *item.writes):
                if span not in _far(item):
                    self._house(span)

    def _house(self, span: Span) -> None:
        start, end = span
        if start not in self.homes:
            offset = self.nbytes + (start - self.nbytes) % _ALIGNMENT  # as wide loads as there
            self.homes[start], self.nbytes = offset, offset + end - start
            self._ends[start] = end

    def outside(self, address: int) -> GlobalAddress:
        """The parameter that is this address."""
        return GlobalAddress(self.addresses.setdefault(address, len(self.addresses)))

    def of(self, item: Item, address: int) -> Argument:
        """An address that a launch was to be given."""
        for start, end in (*item.reads, *item.writes):
            if start <= address < end and start in self.homes:
                return SharedAddress(self.homes[start] + address - start)
        return self.outside(address)

    def copies(self, items: Sequence[Item]) -> tuple[Copied, ...]:
        """What comes into shared memory, being read before it is written, and what goes back."""
        comes, goes = set[int](), set[int]()
        for item in items:
            comes |= {span[0] for span in item.reads} - goes
            goes |= {span[0] for span in item.writes}
        return tuple(
            Copied(
                self.outside(start), at, self._ends[start] - start, start in comes, start in goes
            )
            for start, at in self.homes.items()
        )


def _far(item: Item) -> tuple[Span, ...]:
    """What a launch touches beside the values of its step."""
    variant = item.launch.variant
    if isinstance(variant, Fetch):
        return item.reads
    return (*item.writes, item.reads[0]) if isinstance(variant, KeepAll) else ()


def whole(items: Sequence[Item], first: int = 0, most: int = 0) -> Launch:
    """The launch of one kernel that does what these do.

    Args:
        items: of one step, in order; that which fetches its batch, if there is one, is the first.
        first: address of the numbers of batches before, and in all.
        most: steps of the launch; 0: one step of what lies there, without numbers.
    """
    places = _Places(items)
    feeds: tuple[Feed, ...] = ()
    levels: list[tuple[Piece, ...]] = []
    for level in levels_of(items):
        fetching = [i for i in level if isinstance(i.launch.variant, Fetch)]
        feeds += tuple(feed for item in fetching for feed in _feeds(item, places))
        levels.append(tuple(_piece(item, places) for item in level if item not in fetching))
    copies = places.copies(items)
    # Compilers join loads to one of 16 bytes of which only some are wanted, also at the end.
    shared = -(-places.nbytes // _ALIGNMENT) * _ALIGNMENT
    variant = WholeVariant(
        tuple(levels), copies, feeds, _THREADS, len(places.addresses), shared, bool(most)
    )
    arguments = (*places.addresses, *((first, most) if most else ()))
    return Launch(variant, (1, 1, 1), (_THREADS, 1, 1), arguments, shared)


def _piece(item: Item, places: _Places) -> Piece:
    launch = item.launch
    assert isinstance(launch.variant, Part)
    named = {"first": Named("&start"), "step": Named("step")}
    addresses = launch.variant.addresses
    arguments = tuple(
        named[slot] if slot in named else places.of(item, value) if slot in addresses else value
        for slot, value in zip(launch.variant.slots, launch.arguments, strict=True)
    )
    return Piece(launch.variant, launch.grid, launch.block, arguments)


def _feeds(item: Item, places: _Places) -> list[Feed]:
    launch = item.launch
    variant = launch.variant
    assert isinstance(variant, Fetch)
    values = dict(zip(variant.slots, launch.arguments, strict=True))
    return [
        Feed(
            part,
            values[f"rows{k}"],
            values[f"columns{k}"],
            places.outside(values[f"source{k}"]),
            places.outside(values[f"order{k}"]) if values[f"order{k}"] else None,
            places.of(item, values[f"result{k}"]),
        )
        for k, part in enumerate(variant.parts)
    ]
