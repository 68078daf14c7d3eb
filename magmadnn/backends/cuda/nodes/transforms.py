"""A Fourier transform by cuFFT, as a node of a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FourierNode:
    """Transforms along the last axes of a packed array, out of place and not scaled.

    Attributes:
        kind: "c2c"; "r2c", real numbers to half of their transform; "c2r", back, along one axis.
        double: whether in double precision.
        sizes: of the transforms, as of real numbers: along each axis.
        count: how many transforms.
        inverse: whether exponents are positive, for "c2c".
        source: address of what is read, which "c2r" writes over.
        result: address of what is made.
        workspace: as for `MatrixNode`.
        after: as for `KernelNode`.
    """

    kind: str
    double: bool
    sizes: tuple[int, ...]
    count: int
    inverse: bool
    source: int
    result: int
    workspace: int
    after: tuple[int, ...] = ()

    @property
    def plan(self) -> tuple[str, bool, tuple[int, ...], int]:
        """What the library prepares, which transforms both ways share."""
        return self.kind, self.double, self.sizes, self.count

    @property
    def title(self) -> str:
        """What it computes, without addresses."""
        sizes = " x ".join(map(str, self.sizes))
        many = f"{self.count} of " if self.count > 1 else ""
        kind = "complex128" if self.double else "complex64"
        return f"library fft {self.kind} {many}{sizes} in {kind}"

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given."""
        return (self.source, self.result)
