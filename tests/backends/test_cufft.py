"""Calls of cuFFT, on a stand-in that computes with NumPy in this process's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda.libraries.cufft import Transforms
from magmadnn.backends.cuda.nodes.transforms import FourierNode
from magmadnn.errors import DeviceError
from tests.runtime.cuda.emulator import transform

RNG = np.random.default_rng(2)
TYPES = {0x29: "c2c", 0x2A: "r2c", 0x2C: "c2r", 0x69: "c2c", 0x6A: "r2c", 0x6C: "c2r"}


class Library:
    """Plans by number, and the names of calls."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.plans: list[dict[str, Any]] = []
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cufft"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self._fails:
                return 5
            if name.startswith("cufftExec"):
                self._execute(name, *arguments)
            else:
                getattr(self, f"_{name}")(*arguments)
            return 0

        return call

    def _cufftCreate(self, place: Any) -> None:
        place._obj.value = len(self.plans)
        self.plans.append({})

    def _cufftSetAutoAllocation(self, plan: Any, wanted: Any) -> None:
        assert wanted.value == 0 and not self.plans[plan.value]

    def _cufftMakePlanMany64(
        self, plan: Any, rank: Any, sizes: Any, inembed: Any, istride: Any, idist: Any, onembed: Any,
        ostride: Any, odist: Any, kind: Any, count: Any, nbytes: Any,
    ) -> None:  # fmt: skip
        assert inembed.value is None and onembed.value is None
        made = {"sizes": tuple(sizes[: rank.value]), "kind": kind.value, "count": count.value}
        self.plans[plan.value] |= made
        nbytes._obj.value = 96

    def _cufftSetStream(self, plan: Any, stream: Any) -> None:
        assert stream.value == 7

    def _cufftSetWorkArea(self, plan: Any, place: Any) -> None:
        self.plans[plan.value]["workspace"] = place.value

    def _execute(self, name: str, plan: Any, source: Any, result: Any, *direction: Any) -> None:
        known = self.plans[plan.value]
        letters = name.removeprefix("cufftExec").lower().replace("d", "r").replace("z", "c")
        double = known["kind"] >= 0x60
        assert letters == TYPES[known["kind"]] and double == ("Z" in name)
        inverse = bool(direction) and direction[0].value == 1
        transform(
            FourierNode(
                letters, double, known["sizes"], known["count"], inverse, source.value,
                result.value, known["workspace"],
            )
        )  # fmt: skip


@pytest.mark.parametrize("single", [False, True])
def test_transforms(single: bool) -> None:
    """Of real and complex numbers, along one axis or several; a plan serves both ways."""
    library, room = Library(), np.empty(96, np.uint8)
    transforms = Transforms(library, 7)
    z = (RNG.normal(size=(3, 4, 5)) + 1j * RNG.normal(size=(3, 4, 5))).astype(
        "complex64" if single else "complex128"
    )
    real = np.ascontiguousarray(z.real)
    half = np.fft.rfft(real).astype(z.dtype)
    for kind, sizes, source, inverse, expected in [
        ("c2c", (5,), z, False, np.fft.fft(z)),
        ("c2c", (5,), z, True, np.fft.ifft(z) * 5),
        ("c2c", (4, 5), z, False, np.fft.fft2(z)),
        ("r2c", (3, 4, 5), real, False, np.fft.rfftn(real)),
        ("c2r", (5,), half.copy(), True, real * 5),
    ]:
        goal = np.empty(expected.shape, expected.dtype if not single else z.dtype)
        if kind == "c2r":
            goal = goal.real.astype(real.dtype)
        count = z.size // int(np.prod(sizes))
        places = source.ctypes.data, goal.ctypes.data, room.ctypes.data
        call = FourierNode(kind, not single, sizes, count, inverse, *places)
        assert transforms.workspace(call) == 96
        transforms.prepare(call)
        transforms.call(call)
        np.testing.assert_allclose(goal, expected, rtol=1e-4 if single else 1e-12, atol=1e-4)
    assert library.calls.count("cufftCreate") == 4


def test_a_failure_names_the_function() -> None:
    call = FourierNode("c2c", True, (8,), 1, False, 0, 0, 0)
    with pytest.raises(DeviceError, match="cufftMakePlanMany64 gives status 5"):
        Transforms(Library("cufftMakePlanMany64"), 7).workspace(call)
