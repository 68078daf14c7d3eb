"""Which line of the user's program makes a call."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

_PACKAGE: Final = str(Path(__file__).resolve().parent.parent) + "/"
_PASSED: Final = (_PACKAGE, contextlib.__file__)  # what frames of this package call themselves by
_RUNNERS: Final = ("<frozen", "<string>", threading.__file__)
_LIBRARIES: Final = (
    f"{Path(np.__file__).parent}/",
)  # whose frames are below a call of this package
_SITE: Final = "_magmadnn_site"  # of an error
_told = threading.local()


def call_site() -> str:
    """File and line of the innermost frame that is not of this package, such as train.py:31.

    What `told_site` says comes first: a worker that carries out a client's call names the client's line.
    """
    told = getattr(_told, "site", None)
    if told is not None:
        return str(told)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED):
        frame = frame.f_back
    name = frame.f_code.co_filename
    if name.startswith(_RUNNERS):
        return "magmadnn"
    return f"{name.rpartition('/')[2]}:{frame.f_lineno}"


def line_of(error: BaseException) -> str:
    """File and line of the innermost frame of an error's traceback that is not of this package or NumPy's.

    Where all are of this package it is what `raised_at` was told first, such as the client's line.
    """
    site = str(getattr(error, _SITE, "magmadnn"))
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((*_PASSED, *_RUNNERS, *_LIBRARIES)):
            site = f"{name.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return site


def raised_at(error: BaseException, site: str) -> None:
    """Say of an error which line of the user's program made the call, unless that was said before."""
    if site and site != "magmadnn" and not hasattr(error, _SITE):
        setattr(error, _SITE, site)


@contextmanager
def told_site(site: str) -> Iterator[None]:
    """Calls of this thread in the block are said to be made at `site`."""
    before = getattr(_told, "site", None)
    _told.site = site
    try:
        yield
    except BaseException as error:
        raised_at(error, site)
        raise
    finally:
        _told.site = before
