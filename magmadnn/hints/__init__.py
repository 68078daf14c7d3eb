"""What other libraries call a thing, and what to write here: hints in errors. Pure text, without imports."""

from collections.abc import Iterable

from .synonyms import SYNONYMS as SYNONYMS
from .texts import HINTS as HINTS


def hint(kinds: Iterable[str], name: object, known: Iterable[str] = ()) -> str | None:
    """What to write in place of `name`; None where nothing is known of it.

    Args:
        kinds: of the name, the narrowest first.
        name: what was written.
        known: the names that there are.
    """
    if not isinstance(name, str):
        return None
    for kind in kinds:
        kind = "argument" if kind in ("attribute", "setting") else kind
        others = SYNONYMS.get(kind, {}).get(name)
        if others and set(others) <= set(known):
            return f"it is called {' and '.join(map(repr, others))} here"
        if (found := HINTS.get(kind, {}).get(name)) is not None:
            return found
        if kind in ("monitor", "history column") and name.startswith("val_"):
            if not any(other.startswith("val_") for other in known):
                return "there is no validation: give fit validation_data=(x, y) or validation_split=0.2"
        bare = name.removeprefix("val_")
        bare = SYNONYMS["metric"].get(bare, (bare,))[0]
        if kind == "metric" and bare in known and f"train_{bare}" in known:  # of a search
            return f"it is called {bare!r} of validation rows, 'train_{bare}' of training rows"
    return None
