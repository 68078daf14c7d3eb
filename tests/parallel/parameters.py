"""Shared by the tests of this folder: parameters of a training on ranks beside those of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def assert_near(found: Mapping[str, Any], expected: Mapping[str, Any], atol: float = 1e-12) -> None:
    """All expected values, by name, are found, and no element is further off than `atol`."""
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)
