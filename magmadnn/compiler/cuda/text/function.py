"""A function of CUDA C++: as a kernel of its own, or as a part of a larger one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.rows import Rows

from .prelude import BEGIN

# What the body of a part sees instead of CUDA's own numbers of threads and blocks.
_INDICES = "const Index blockIdx, const Index threadIdx, const Index blockDim, const Index gridDim"


@dataclass(frozen=True)
class Function:
    """A function.

    Attributes:
        name: of the function.
        parameters: types and names.
        body: statements, which see `blockIdx`, `threadIdx`, `blockDim` and `gridDim`.
        threads: most of a block; 0 where nothing depends on it.
        before: what it needs beside what its module begins with.
    """

    name: str
    parameters: str
    body: str
    threads: int = 0
    before: str = ""

    def kernel(self) -> str:
        """As a kernel, which waits for those before it."""
        bounds = f"__launch_bounds__({self.threads}) " if self.threads else ""
        head = f'extern "C" __global__ void {bounds}{self.name}({self.parameters})'
        return f"{self.before}{head} {{\n{BEGIN}{self.body}\n}}\n"

    def part(self) -> str:
        """As a part of a kernel, which is told as which thread of which block it runs."""
        head = f"static __device__ __forceinline__ void {self.name}({_INDICES}, {self.parameters})"
        return f"{self.before}{head} {{\n{self.body}\n}}\n"


class OneFunction(ABC):
    """A variant that is one function, as a kernel and as a part of one."""

    @abstractmethod
    def function(self, name: str) -> Function:
        """The function under that name."""

    def text(self, name: str) -> str:
        """The kernel."""
        return self.function(name).kernel()


class OfParts(OneFunction):
    """A variant of a fused kernel: its parameters are the kernel's slots.

    Attributes:
        kernel: what is computed.
    """

    kernel: Rows | Columns

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    @property
    def addresses(self) -> tuple[str, ...]:
        """Slots that are addresses."""
        return tuple(part.name for part in self.kernel.parts)


@runtime_checkable
class Part(Protocol):
    """A variant whose threads wait for none but those of their warp, so that it can be a part of a kernel."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of them that are addresses of values."""
        ...

    def function(self, name: str) -> Function:
        """The function under that name."""
        ...
