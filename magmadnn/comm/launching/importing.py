"""What modules may not do while a worker imports them: start workers, which would import them too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from magmadnn.errors import ArgumentError

_importing: ContextVar[str | None] = ContextVar("magmadnn_module_for_workers", default=None)


@contextmanager
def importing(module: str) -> Iterator[None]:
    """In the block a worker imports `module`."""
    token = _importing.set(module)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_on_import() -> None:
    """Refuse to start processes while a worker imports a module: each of them would import it again.

    Raises:
        ArgumentError: in a block of `importing`.
    """
    if (module := _importing.get()) is not None:
        raise ArgumentError(
            f"module {module} starts workers when it is imported, and workers import it too: put that under "
            'if __name__ == "__main__":'
        )
