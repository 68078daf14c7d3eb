"""A Tensor whose initial values are drawn when they are first read.

A layer makes its parameters before a Model gives it a final name and a seed. Initial values depend on
both, so they wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.graph.op import Array

from .init import Initializer
from .tensor import Tensor

_making = ProcessLock(reentrant=True)  # an initialiser of a user's may read other variables


class LazyTensor:
    """Storage of a variable: shape, dtype and initialiser now, values at the first use.

    Attributes:
        name: str(name) is the stream of the random numbers.
        seed: of the random numbers; may be set until the first use.
    """

    def __init__(
        self, name: object, shape: tuple[int, ...], dtype: np.dtype[Any], init: Initializer
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.init = init
        self.seed = 0
        self._tensor: Tensor | None = None
        self._held: Array | None = None

    @property
    def drawn(self) -> bool:
        """Whether the values exist already."""
        return self._tensor is not None or self._held is not None

    def hold(self, values: Array) -> None:
        """Have these values, in memory that nobody else uses, in place of initial ones."""
        if self._tensor is None:
            self._held = values
        else:
            self._tensor.write(values)

    def kept(self) -> Array | None:
        """What `hold` would replace, for `put_back`; None where values were not drawn."""
        return self._held if self._tensor is None else np.array(self._tensor.read())

    def put_back(self, kept: Array | None) -> None:
        """Undo `hold`, whose values nobody has used."""
        if self._tensor is None or kept is None:
            self._held = kept
        else:
            self._tensor.write(kept)

    @property
    def tensor(self) -> Tensor:
        """The values, drawn now if they were not yet."""
        found = self._tensor
        if found is not None:
            return found
        with _making:  # of two threads that read first both have this one
            if self._tensor is None and self._held is not None:
                self._tensor, self._held = Tensor.wrap(self._held), None
            if self._tensor is None:
                self._tensor = Tensor(
                    self.shape, self.init, self.dtype, seed=self.seed, name=str(self.name)
                )
            return self._tensor

    def read(self) -> Array:
        """The values on the host, not to be written."""
        held = self._held
        if held is None:
            return self.tensor.read()
        found = held.view()
        found.flags.writeable = False
        return found

    def write(self, value: Array) -> None:
        """Set the values."""
        self.tensor.write(value)
