"""What a device must be able to do beside holding memory: compile, load and run graphs of launches.

A graph is a list of nodes, each of which says after which others it comes; what is not ordered may run at
the same time. It is made once and launched many times. Everything that an engine does is done in the order
in which it is asked for, and in one order with the copies of `DeviceMemory`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from .nodes.among_gpus import AmongNode as AmongNode
from .nodes.arrays import ArrayNode as ArrayNode
from .nodes.arrays import HostNode as HostNode
from .nodes.matrices import MatrixNode as MatrixNode
from .nodes.stand_ins import CopyNode as CopyNode
from .nodes.stand_ins import Replay as Replay
from .nodes.transforms import FourierNode as FourierNode


@dataclass(frozen=True)
class KernelNode:
    """A launch of a function.

    Attributes:
        function: as `Engine.load` gave it.
        grid: blocks,
        block: and threads of each.
        shared_bytes: dynamic shared memory.
        arguments: 8 bytes each: integers and addresses.
        after: numbers of nodes, all lower than this one's, that are done when it begins.
    """

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[int, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProductNode:
    """A matrix product by the device's library: C[m, n] = op(A) op(B), row by row.

    The library may add a bias, cut off what is negative, and compute alpha op(A) op(B) + beta C; not each of
    these goes with every dtype, see `Engine.algorithms`.

    Attributes:
        dtype: float32 or float64, of everything but what `halves` and `stored` say.
        tensor_float: whether float32 may be multiplied as TF32.
        sizes: m, n, k.
        transposes: whether A is stored [k, m] and B [n, k].
        a, b, c: addresses.
        strides: elements from row to row of a, b, c as they are stored.
        workspace: address of `PRODUCT_WORKSPACE` bytes that no other node uses at the same time.
        after: as for `KernelNode`.
        algorithm: one of `Engine.algorithms`; the first where it says none.
        halves: bfloat16 or float16 where A and B are; sums are float32's.
        stored: the same where C is: it is rounded in the end.
        bias: address of n numbers that are added to each row, as float32 or as `stored` says; 0 for none.
        positive: whether negative elements become 0.
        scales: address of alpha and beta, of `dtype`, that are read when the product runs; 0 for 1 and 0.
        count: products of these sizes, of stacks of matrices;
        steps: elements from one matrix to the next of a, b and c; 0 for one that serves all.
    """

    dtype: str
    tensor_float: bool
    sizes: tuple[int, int, int]
    transposes: tuple[bool, bool]
    a: int
    b: int
    c: int
    strides: tuple[int, int, int]
    workspace: int
    after: tuple[int, ...] = ()
    halves: str | None = None
    stored: str | None = None
    bias: int = 0
    positive: bool = False
    scales: int = 0
    algorithm: bytes = b""
    count: int = 1
    steps: tuple[int, int, int] = (0, 0, 0)

    @property
    def leading_dimensions(self) -> tuple[int, int, int]:
        """The strides as BLAS takes them: at least a row long, also where there is one row or none."""
        m, n, k = self.sizes
        rows = (m if self.transposes[0] else k, k if self.transposes[1] else n, n)
        a, b, c = (max(*pair, 1) for pair in zip(self.strides, rows, strict=True))
        return a, b, c

    @property
    def title(self) -> str:
        """What it computes, without addresses."""
        kind = self.halves or ("tf32" if self.tensor_float else self.dtype)
        ends = ["bias"] * bool(self.bias) + ["cut at 0"] * self.positive
        ends += ["update"] * bool(self.scales)
        sizes = re.sub(r"( x 1)+$", "", " x ".join(map(str, self.sizes)))
        several = f"{self.count} of " if self.count > 1 else ""
        product = f"cuBLASLt product {several}{sizes} in {kind}"
        return f"{product} with {', '.join(ends)}" if ends else product

    @property
    def result_items(self) -> int:
        """Elements from the first that is written to the end of the last row."""
        return (self.count - 1) * self.steps[2] + self.sizes[0] * self.strides[2]

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given; 0 for none."""
        return (self.a, self.b, self.c, self.bias, self.scales)


@dataclass(frozen=True)
class ConvolutionNode:
    """A convolution, or one of the products that its gradients are, by the device's library.

    With x [n, *places, c], w [o, *size, c / groups] and y [n, *windows, o], packed but for what `pitches`
    says: "fprop" makes y, "dgrad" x and "wgrad" w. To what "fprop" makes, another result and a bias may be
    added.

    Attributes:
        function: which.
        dtype: of what is read; sums of halves are float32's.
        stored: dtype of the result.
        tensor_float: whether float32 may be multiplied as TF32.
        shapes: of x, w and y, with two or three axes of places.
        strides, padding, dilation: of each axis of places; the padding before and after it.
        groups: how many.
        x, w, y: addresses.
        bias: address of [o] that is added, in the dtype that is read; 0 for none.
        added: address of what is added besides, of the shape and dtype of y; 0 for none; with a bias only.
        positive: whether y is then at least 0; with a bias only.
        pitches: elements from one place to the next of x, w and y, where they lie apart, as the channels of a
            branch do within a concatenation; 0 where they are packed, as all are where there is a bias.
        workspace: as for `MatrixNode`.
        after: as for `KernelNode`.
        algorithm: as for `ProductNode`.
    """

    function: str
    dtype: str
    stored: str
    tensor_float: bool
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    x: int
    w: int
    y: int
    workspace: int
    after: tuple[int, ...] = ()
    algorithm: bytes = b""
    bias: int = 0
    added: int = 0
    positive: bool = False
    pitches: tuple[int, int, int] = (0, 0, 0)

    @property
    def result(self) -> int:
        """Which of x, w and y is made: its number."""
        return ("dgrad", "wgrad", "fprop").index(self.function)

    @property
    def title(self) -> str:
        """What it computes, without addresses."""
        kind = "tf32" if self.dtype == "float32" and self.tensor_float else self.dtype
        apart = [f" of {pitch}" if pitch else "" for pitch in self.pitches]
        x, w, y = (" x ".join(map(str, s)) + a for s, a in zip(self.shapes, apart, strict=True))
        given = [("x", x), ("w", w), ("y", y)]
        made = given.pop(self.result)
        read = " and ".join(f"{name} {shape}" for name, shape in given)
        ends = ["sum"] * bool(self.added) + ["bias"] * bool(self.bias)
        ends += ["cut at 0"] * self.positive
        call = f"library {self.function} of {read} to {made[0]} {made[1]} in {kind}"
        return f"{call} with {', '.join(ends)}" if ends else call

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given; 0 for none."""
        return (self.x, self.w, self.y, self.bias, self.added)

    @property
    def bare(self) -> ConvolutionNode:
        """The same without addresses but for 1 where there are some that may be none."""
        return replace(
            self, x=0, w=0, y=0, bias=int(bool(self.bias)), added=int(bool(self.added)), workspace=0,
            after=(), algorithm=b"",
        )  # fmt: skip


@dataclass(frozen=True)
class EventNode:
    """Takes down when all that it comes after is done.

    Attributes:
        event: as `Engine.event` gave it.
        after: as for `KernelNode`.
    """

    event: Any
    after: tuple[int, ...] = ()


# What a device's library for convolutions computes: `ConvolutionNode.function`.
CONVOLUTIONS = frozenset({"fprop", "dgrad", "wgrad"})
# and, of a step forward, what follows it as well
FUSED_CONVOLUTIONS = CONVOLUTIONS | {"fprop_fused"}
# Calls of the device's libraries: each is given to a stream once, and what the library did there is a node.
LibraryNode = ProductNode | MatrixNode | ConvolutionNode | FourierNode | AmongNode
GraphNode = KernelNode | LibraryNode | EventNode
# What can be begun with other memory each time.
ReplayNode = KernelNode | CopyNode | ProductNode | MatrixNode | FourierNode | ArrayNode

PRODUCT_WORKSPACE = 32 << 20


@dataclass(frozen=True)
class NativeCall:
    """A call of the device's library that native code can make too, in any thread.

    Attributes:
        name: of the function.
        words: its address, and the integers and addresses that it is given; it gives 0 if all went well.
        held: what of that nobody else keeps alive.
    """

    name: str
    words: tuple[int, ...]
    held: object = field(default=None, compare=False, repr=False)


class Graph(Protocol):
    """Nodes that were made one thing, to be launched again and again.

    Attributes:
        call: launches it, as long as it is there.
    """

    call: NativeCall

    def launch(self) -> None:
        """Begin to run all nodes; returns before they are done."""
        ...

    def moved(self, move: Callable[[int], int]) -> Graph | None:
        """The same kernels with other arguments; None where it has anything but kernels.

        Args:
            move: gives an argument in place of another one.
        """
        ...


def moved_nodes(nodes: Sequence[GraphNode], move: Callable[[int], int]) -> list[GraphNode] | None:
    """Kernels with other arguments, see `Graph.moved`; None where there is anything but kernels."""
    found = list[GraphNode]()
    for node in nodes:
        if not isinstance(node, KernelNode):
            return None
        found.append(replace(node, arguments=tuple(map(move, node.arguments))))
    return found


class Event(Protocol):
    """A place behind what a stream was given."""

    def wait(self) -> None:
        """Return once all of that is done."""
        ...

    def seconds_since(self, earlier: Any) -> float:
        """The device's time between two such places that are past, both marked with `timed`."""
        ...


class ReusableEvent(Protocol):
    """A mark that is set again and again.

    Attributes:
        call: waits until what it was set behind last is done.
    """

    call: NativeCall

    def wait(self) -> None:
        """The same, at once."""
        ...


class NativeCalls(Protocol):
    """What a stream is given by native code, once for each time that the call is made."""

    def copy(self, to: int, source: int, nbytes: int) -> NativeCall:
        """Begin to copy between addresses of the device, or of pinned memory of the host."""
        ...

    def launch(self, node: KernelNode, arguments: NDArray[np.int64]) -> NativeCall:
        """Begin to run one kernel, with the arguments that stand there then."""
        ...

    def mark(self, fence: ReusableEvent) -> NativeCall:
        """Set a fence behind all that the stream was given."""
        ...

    def follow(self, fence: ReusableEvent) -> NativeCall:
        """What the stream is given from then on comes after what a fence was set behind last."""
        ...


class Stream(Protocol):
    """A stream beside the engine's own: only `follow` orders what it is given with anything else.

    Attributes:
        calls: what it is given by native code.
    """

    @property
    def calls(self) -> NativeCalls:
        """See above."""
        ...

    def mark(self, timed: bool = False) -> Event:
        """A mark behind all that the lane was given."""
        ...

    def follow(self, mark: Event) -> None:
        """What the lane is given from now on comes after a mark."""
        ...


class Engine(Protocol):
    """Computing on one device.

    Attributes:
        capability: compute capability, 90 for 9.0.
        processors: number of multiprocessors.
        shared_bytes: most shared memory of a block.
        versions: of everything that compiled code depends on.
        library: the device and the version of its library: algorithms are the same where these are.
        functions: names of functions of whole arrays (`graph/computed_by.py`) that its libraries have.
    """

    capability: int
    processors: int
    shared_bytes: int
    versions: tuple[str, ...]

    @property
    def library(self) -> str:
        """See above."""
        ...

    @property
    def functions(self) -> frozenset[str]:
        """See above."""
        ...

    def compile(self, text: str, options: Sequence[str]) -> bytes:
        """CUDA C++ as machine code for this device."""
        ...

    def load(self, image: bytes, names: Sequence[str]) -> list[Any]:
        """The functions of these names in what `compile` gave."""
        ...

    def algorithms(self, node: ProductNode | ConvolutionNode, most: int = 1) -> list[bytes]:
        """The library's algorithms for a product, as it prefers them; none where it has no such product."""
        ...

    def workspace(self, node: MatrixNode | ConvolutionNode | FourierNode) -> int:
        """Bytes of workspace that a call wants."""
        ...

    def graph(self, nodes: Sequence[GraphNode], patient: Collection[int] = ()) -> Graph:
        """A graph of nodes; `patient` ones, by number, let others go first where both could run."""
        ...

    def alone(self, node: MatrixNode | ArrayNode | HostNode) -> Graph:
        """A call that no graph can hold (not `MatrixNode.is_captured`), to be launched like one."""
        ...

    def replay(self, nodes: Sequence[ReplayNode]) -> Replay:
        """Nodes that run one after the other, given stand-ins (`nodes/stand_ins.py`) for some addresses.

        Of a `MatrixNode` stand-ins are among the operands of one that is captured; of a `ProductNode` they
        are a, b and c.
        """
        ...

    def launch(self, node: KernelNode) -> None:
        """Begin to run one kernel; returns before it is done."""
        ...

    def at_once(self, node: KernelNode, blocks: int) -> int:
        """How many clusters of so many blocks of a kernel the device runs at the same time."""
        ...

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Begin to copy between addresses of the device, or of pinned memory of the host; in order."""
        ...

    def tell(self, places: Sequence[int], number: int) -> None:
        """Begin to write a number of 32 bits to addresses, of other GPUs too, behind all that was launched.

        What that has written is seen before the number is.
        """
        ...

    def hear(self, places: Sequence[int], number: int) -> None:
        """What is launched from now on waits for that number, or a later one, at addresses of the device."""
        ...

    def argsort(self, count: int, draw: Callable[[int], KernelNode]) -> NDArray[np.int64]:
        """The order that sorts `count` unsigned integers of 64 bits; equal ones keep theirs.

        It is found beside all that is launched, in no order with it; any thread may ask.

        Args:
            count: how many.
            draw: the launch that makes them at an address.

        Raises:
            MemoryError: if there is no room for them.
        """
        ...

    def prepare(self) -> None:
        """Load now what else would be loaded when it is first wanted."""
        ...

    def event(self) -> Any:
        """An event for an `EventNode`."""
        ...

    def seconds(self, first: Any, last: Any) -> float:
        """The time between two events, in the last launch of their graph that was waited for."""
        ...

    def marked(self, title: str) -> AbstractContextManager[None]:
        """A range of that title for NVIDIA's tools, around what is done meanwhile."""
        ...

    def wait(self) -> None:
        """Return once all that was launched is done."""
        ...

    def mark(self, timed: bool = False) -> Event:
        """A mark behind all that was launched."""
        ...

    def lane(self) -> Stream:
        """A stream beside what is launched."""
        ...

    def fence(self) -> ReusableEvent:
        """A fence that was not set yet: nobody waits for it."""
        ...

    @property
    def calls(self) -> NativeCalls:
        """What is launched, by native code."""
        ...

    @property
    def enter(self) -> NativeCall:
        """What a thread of native code calls before others."""
        ...

    def fail(self, call: NativeCall, status: int) -> NoReturn:
        """Raise the error of a call that gave another number than 0."""
        ...
