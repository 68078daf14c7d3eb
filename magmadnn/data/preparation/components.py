"""Principal components of prepared inputs, as plain values that a `Preparation` keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.analytics import PCA
from magmadnn.data.preparation._statistics import Floats
from magmadnn.errors import ArgumentError, DataError, quoted
from magmadnn.graph.signature import is_integer


def check_pca(count: int | None) -> None:
    """Refuse what is no number of components.

    Raises:
        ArgumentError: if it is neither None nor a positive integer.
    """
    if count is not None and (not is_integer(count) or count < 1):
        raise ArgumentError(f"pca must be a positive integer or None, got {quoted(count)}")


@dataclass(frozen=True)
class Components:
    """Directions of the largest variance of scaled inputs z: they become (z - mean) @ directions^T.

    All are divided by one number, so that the mean variance of the training rows' coordinates is 1:
    distances between rows keep their proportions, and a network's initial values suit.

    Attributes:
        mean: of the training rows' scaled inputs, one for each element of a row.
        directions: [count][elements], orthogonal, the largest variance first.
        explained: part of the variance of the training rows that they have, from 0 to 1.
    """

    mean: tuple[float, ...]
    directions: tuple[tuple[float, ...], ...]
    explained: float

    def __post_init__(self) -> None:
        sizes = {len(self.mean), *map(len, self.directions)}
        numbers = np.array([*self.mean, self.explained, *(x for d in self.directions for x in d)])
        if not self.directions or len(sizes) != 1 or not np.isfinite(numbers).all():
            raise DataError(
                "preparation: components need one finite number for each input in each, got sizes "
                f"{quoted(sorted(sizes))}"
            )

    @classmethod
    def fit(cls, z: NDArray[Any], count: int) -> Components:
        """Those of scaled training rows z [rows, elements].

        Raises:
            DataError: if there are fewer.
        """
        most = min(len(z) - 1, z.shape[1])
        if count > most:
            raise DataError(
                f"pca: {count} components of {z.shape[1]} inputs and {len(z)} training rows, of which there "
                f"are at most {most}: ask for fewer"
            )
        solver = "covariance_eigh" if len(z) > z.shape[1] else "full"
        found = PCA(count, svd_solver=solver).fit(z)
        directions = np.asarray(found.components_)
        variance = float(found.explained_variance_.mean())
        directions = directions / np.sqrt(variance) if variance > 0 else directions
        explained = float(found.explained_variance_ratio_.sum())
        rows = tuple(tuple(row) for row in directions.tolist())
        return cls(tuple(found.mean_.tolist()), rows, min(explained, 1.0))

    def matrix(self) -> Floats:
        """[elements, count]: what rows are multiplied by."""
        return np.array(self.directions).T

    def apply(self, z: NDArray[Any]) -> Floats:
        """Coordinates [rows, count] of scaled inputs [rows, ...]."""
        flat = np.asarray(z, np.float64).reshape(len(z), len(self.mean))
        found: Floats = (flat - np.array(self.mean)) @ self.matrix()
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; floats keep all their digits."""
        return {
            "mean": list(self.mean),
            "directions": [list(row) for row in self.directions],
            "explained": self.explained,
        }

    @classmethod
    def from_json(cls, data: Any) -> Components:
        """Those that `to_json` wrote.

        Raises:
            DataError: the data is something else.
        """
        mean, rows, explained = (
            (data.get(key) for key in ("mean", "directions", "explained"))
            if isinstance(data, Mapping)
            else (None, None, None)
        )
        lists = [mean, *rows] if isinstance(rows, list) else [None]
        if type(explained) is not float or not all(
            isinstance(row, list) and all(type(x) is float for x in row) for row in lists
        ):
            raise DataError("preparation: the saved data is damaged: components are no lists")
        return cls(tuple(mean or ()), tuple(tuple(row) for row in rows or ()), explained)
