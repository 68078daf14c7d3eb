"""What a mistake is answered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magmadnn.errors import MagmaDNNError


def error_of(call: Callable[[], Any]) -> tuple[type[MagmaDNNError], str]:
    """The class and the text of the error that `call` raises."""
    with pytest.raises(MagmaDNNError) as caught:
        call()
    return caught.type, str(caught.value)
