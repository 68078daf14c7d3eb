"""cuFFT through ctypes: transforms on one stream, in workspaces that are given."""

from __future__ import annotations

from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from typing import Any

from magmadnn.backends.cuda.nodes.transforms import FourierNode

from .recorded import Caller, RecordedCall

# cufftType, single and double
_TYPES = {"c2c": (0x29, 0x69), "r2c": (0x2A, 0x6A), "c2r": (0x2C, 0x6C)}
_CALLS = {
    "c2c": ("cufftExecC2C", "cufftExecZ2Z"),
    "r2c": ("cufftExecR2C", "cufftExecD2Z"),
    "c2r": ("cufftExecC2R", "cufftExecZ2D"),
}
_FORWARD, _INVERSE = -1, 1


class Transforms:
    """Transforms on one stream; plans are kept.

    Args:
        library: cuFFT, as `ctypes.CDLL` gives it.
        stream: what they are given to.
    """

    def __init__(self, library: Any, stream: int) -> None:
        self._library, self._stream, self._caller = library, stream, Caller()
        self._plans: dict[object, tuple[int, int]] = {}  # handles, and bytes of their workspace
        self._areas: dict[int, int] = {}  # workspaces that plans know, by their handles

    def workspace(self, node: FourierNode) -> int:
        """Bytes that a transform wants for itself."""
        return self._plan(node)[1]

    def call(self, node: FourierNode) -> None:
        """Give the stream a transform."""
        handle = self._plan(node)[0]
        plan, begin = c_int(handle), self._caller.begin
        begin(self, "_settle", handle, node.workspace)
        direction = [c_int(_INVERSE if node.inverse else _FORWARD)] if node.kind == "c2c" else []
        places = c_void_p(node.source), c_void_p(node.result)
        begin(self._library, _CALLS[node.kind][node.double], plan, *places, *direction)

    def _settle(self, handle: int, workspace: int) -> None:
        """Have a plan know its workspace, if it knows another one."""
        if self._areas.get(handle) != workspace:
            self._caller.ask(self._library, "cufftSetWorkArea", c_int(handle), c_void_p(workspace))
            self._areas[handle] = workspace

    def recorded(self, node: FourierNode) -> list[RecordedCall]:
        """What `call` calls of the library, to be called later."""
        with self._caller.recording() as found:
            self.call(node)
        return found

    def prepare(self, node: FourierNode) -> None:
        """Make the plan of a transform, if there is none."""
        self._plan(node)

    def _plan(self, node: FourierNode) -> tuple[int, int]:
        if node.plan not in self._plans:
            plan, nbytes = c_int(), c_size_t()
            sizes = (c_longlong * len(node.sizes))(*node.sizes)
            self._caller.ask(self._library, "cufftCreate", byref(plan))
            self._caller.ask(self._library, "cufftSetAutoAllocation", plan, c_int(0))
            none, packed = c_void_p(), c_longlong(1)
            self._caller.ask(
                self._library, "cufftMakePlanMany64",
                plan, c_int(len(node.sizes)), sizes, none, packed, packed, none, packed, packed,
                c_int(_TYPES[node.kind][node.double]), c_longlong(node.count), byref(nbytes),
            )  # fmt: skip
            self._caller.ask(self._library, "cufftSetStream", plan, c_void_p(self._stream))
            self._plans[node.plan] = plan.value, nbytes.value
        return self._plans[node.plan]
