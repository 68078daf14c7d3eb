"""Gets that can never be answered, found from who waits for what, and told in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magmadnn.workflow.description.checking import tags_meet


@dataclass(frozen=True)
class Blocked:
    """A rank that waits.

    Attributes:
        run: key of its module run.
        module: the module.
        tag: or pattern that it waits for.
        where: file and line.
        source: the one module that it waits for; empty where it waits for a tuple.
    """

    run: str
    module: str
    tag: str
    where: str
    source: str = ""

    @property
    def words(self) -> str:
        """What it waits for."""
        wanted = f"a message of {self.source}" if self.source else f"tag {self.tag!r}"
        return f"waits for {wanted} ({self.where})"


def never_answered(
    blocked: Sequence[Blocked],
    going_on: Iterable[str],
    coming: Mapping[str, Sequence[str]],
    puts: Mapping[str, Sequence[str] | None],
) -> list[Blocked]:
    """The gets that nobody who may still run can answer.

    Args:
        blocked: those who wait.
        going_on: modules with a rank that runs and does not wait.
        coming: modules that have not begun, and the modules that end before they do.
        puts: what modules say that they put; None: nothing is said, so it may be anything.
    """
    alive = set(going_on)
    waiting = list(blocked)
    later = dict(coming)
    changed = True
    while changed:
        changed = False
        held = {one.module for one in waiting}
        for name, parents in list(later.items()):
            if not any(p in held or p in later for p in parents if p != name):
                alive.add(name)
                del later[name]
                changed = True
        for one in list(waiting):
            if any(_may_answer(name, puts.get(name), one) for name in alive):
                waiting.remove(one)
                alive.add(one.module)
                changed = True
    return waiting


def _may_answer(name: str, tags: Sequence[str] | None, one: Blocked) -> bool:
    return name == one.source if one.source else _may_put(tags, one.tag)


def _may_put(tags: Sequence[str] | None, tag: str) -> bool:
    return tags is None or any(tags_meet(one, tag) for one in tags)


def in_words(stuck: Sequence[Blocked], puts: Mapping[str, Sequence[str] | None]) -> str:
    """`deadlock: A waits for tag 'x' (a.py:3), which only B puts, which waits for tag 'y' (b.py:7)`."""
    by_module: dict[str, Blocked] = {}
    for one in stuck:
        by_module.setdefault(one.module, one)
    told, parts = set(), []
    for first in stuck:
        if first.module in told:
            continue
        text, here = f"{first.run} {first.words}", first
        told.add(first.module)
        while True:
            putters = sorted(n for n, tags in puts.items() if tags and _may_put(tags, here.tag))
            putters = [here.source] if here.source else putters
            if not putters:
                silent = any(tags is None for tags in puts.values())
                text += (
                    ", which nobody who can still run puts" if silent else ", which no module puts"
                )
                break
            text += "" if here.source else f", which only {' and '.join(putters)} puts"
            following = next((by_module[n] for n in putters if n in by_module), None)
            if following is None:
                text += ", which has ended"
                break
            text += f", which {following.words}"
            if following.module in told:
                break
            told.add(following.module)
            here = following
        parts.append(text)
    return "deadlock: " + "; ".join(parts)
