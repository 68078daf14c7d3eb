"""Standardize: how a model is to prepare raw data, before the training rows are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.preparation.components import check_pca
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.preparation.targets import Task, check_task
from magmadnn.data.tables.chosen_columns import Names
from magmadnn.errors import UnknownNameError


@dataclass(frozen=True)
class Standardize:
    """What a `Preparation` shall be fitted with; `Model.fit` fits it on the rows that it trains on.

    Attributes:
        missing: "mean" fills missing values of inputs with the mean; None: they are an error.
        task: "classification" or "regression"; None: what the model's loss says.
        ignore: columns of a table that are left out.
        categories: columns of a table whose values name categories though they are numbers.
        pca: how many principal components of the training rows inputs become; None: they stay.
    """

    missing: Literal["mean"] | None = None
    task: Task | None = None
    ignore: Names = ()
    categories: Names = ()
    pca: int | None = None

    def __post_init__(self) -> None:
        if self.missing not in (None, "mean"):
            raise UnknownNameError.of("missing", self.missing, ["mean"])
        if self.task is not None:
            check_task(self.task)
        check_pca(self.pca)

    def fit(
        self,
        x: Any,
        target: Any,
        *,
        task: Task | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> Preparation:
        """The preparation of these rows; see `Preparation.fit`.

        Args:
            x: inputs.
            target: targets.
            task: where `self.task` says none.
            rows: those that statistics are taken from; None: all.
        """
        return Preparation.fit(
            x,
            target,
            task=self.task or task,
            missing=self.missing,
            ignore=self.ignore,
            categories=self.categories,
            rows=rows,
            pca=self.pca,
        )
