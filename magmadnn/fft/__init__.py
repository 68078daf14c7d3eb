"""Discrete Fourier transforms and convolution by them, with gradients: `md.fft.NAME`, with NumPy's names.

Arrays and Tensors are computed with at once, Variables and Operations give Operations. float32 gives
complex64, float64 and integers complex128. SciPy computes them (extra `linalg`), on as many threads as
`md.set_threads` says; without it NumPy does, on one.
"""

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names

from .convolving import convolve
from .frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from .numpy_names import (
    fft,
    fft2,
    fftn,
    ifft,
    ifft2,
    ifftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

__all__ = [
    "convolve",
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.fft", __all__)
