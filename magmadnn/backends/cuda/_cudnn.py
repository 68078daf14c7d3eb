"""cuDNN through ctypes: convolutions on a stream of our own, by its graph interface.

A step forward may have another result and a bias added to it, and what is negative made 0: the library's
engines do that in this order, with the bias in the dtype of the operands.

The library numbers axes as N, C, places; strides say that channels are last. Every element is one sum of
products: engines that transform (Winograd, Fourier), that sum in half precision, or whose results may
differ from run to run are left out. Of the others the library's heuristics name some, best first; an
algorithm is one of these, by its place among them: they depend on sizes, the device and the library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from ctypes import byref, c_void_p
from typing import Any

from magmadnn.errors import DeviceError

from . import _cudnn_descriptors as cudnn
from ._cudnn_descriptors import Descriptor
from .engine import ConvolutionNode

_DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}  # cudnnDataType_t
_CROSS_CORRELATION = 1
_X, _FILTERS, _Y = 0, 1, 2  # names of tensors, as `ConvolutionNode.shapes` orders them
_BIAS, _ADDED, _BETWEEN = (
    3,
    4,
    5,
)  # and of others; those between operations are numbered from the last on
_ADD, _CUT = 0, 100  # CUDNN_POINTWISE_ADD, CUDNN_POINTWISE_RELU_FWD
_ALIGNED = 16  # bytes
_MOST_PROPOSALS = 32
_MODES = (3, 2)  # CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK
_TENSOR_CORES, _ROUNDS_INPUTS, _ROUNDS_SUMS, _FOURIER, _VARIES, _WINOGRAD = range(6)  # notes
_LARGEST_WORKSPACE = 1 << 30
# Numbers of engines that benchmarks/gpu/convolution_engines.py found wrong on an H100 (cuDNN 9.19): of wgrad
# 1 with unequal padding, 17 by 3e-3 in float32, 47 by 6e-3 in bfloat16.
_WRONG = {"wgrad": (1, 17, 47)}

# Of each operation: its descriptor; attributes for the convolution, the filters, x and y, and alpha and beta
_OPERATIONS = {
    "fprop": (cudnn.FORWARD, 702, 703, 704, 705, 700, 701),
    "dgrad": (cudnn.OF_INPUTS, 708, 709, 710, 711, 706, 707),
    "wgrad": (cudnn.OF_FILTERS, 714, 715, 716, 717, 712, 713),
}


class _Plan:
    """A way to compute a convolution.

    Attributes:
        descriptor: of the plan.
        workspace: bytes.
    """

    def __init__(self, descriptor: Descriptor, workspace: int) -> None:
        self.descriptor, self.workspace = descriptor, workspace


class Convolutions:
    """Convolutions on one stream.

    Args:
        library: cuDNN, as `ctypes.CDLL` gives it.
        stream: what they are given to; None to plan only.
        device: properties of the device that is planned for, where there is no stream.
    """

    def __init__(self, library: Any, stream: int | None, device: Descriptor | None = None) -> None:
        self._library, self._device, self._handle = library, device, c_void_p()
        self._plans: dict[ConvolutionNode, dict[bytes, _Plan]] = {}
        self.version = int(library.cudnnGetVersion())
        if stream is not None:
            self._call("cudnnCreate", byref(self._handle))
            self._call("cudnnSetStream", self._handle, c_void_p(stream))

    def workspace(self, node: ConvolutionNode) -> int:
        """Bytes that a convolution wants for itself."""
        return self._plan(node).workspace

    def algorithms(self, node: ConvolutionNode, most: int) -> list[bytes]:
        """Names of some ways to compute a convolution, best first by the library's own judgement."""
        known = self._known(node, most)
        return list(known)[:most]

    def call(self, node: ConvolutionNode) -> None:
        """Give the stream a convolution."""
        plan, pointers = self._plan(node), Descriptor(self._library, cudnn.POINTERS)
        names = [_X, _FILTERS, _Y] + [_BIAS] * bool(node.bias) + [_ADDED] * bool(node.added)
        pointers.set(1000, cudnn.INTEGER, *names)
        pointers.set(1001, cudnn.ADDRESS, *(at for at in node.addresses if at))
        pointers.set(1003, cudnn.ADDRESS, node.workspace)
        pointers.end()
        self._call(
            "cudnnBackendExecute", self._handle, plan.descriptor.address, pointers.address
        )  # fmt: skip

    # --- plans ------------------------------------------------------------------------------------

    def _plan(self, node: ConvolutionNode) -> _Plan:
        """That of the node's algorithm; the first where it says none."""
        known = self._known(node, 1)
        if not known:
            raise DeviceError(
                f"cuDNN {self.version} has no way for {node.title} that gives the same bits in every run; "
                "compute on the processor, or uninstall cuDNN to have it computed as products"
            )
        return known[node.algorithm] if node.algorithm else next(iter(known.values()))

    def _known(self, node: ConvolutionNode, most: int) -> dict[bytes, _Plan]:
        """At least so many plans, if there are that many, by their names."""
        bare = node.bare
        known = self._plans.setdefault(bare, {})
        if len(known) < most:
            for place, (number, plan) in enumerate(itertools.islice(self.numbered(bare), most)):
                known.setdefault(f"cuDNN {self.version} {place} engine {number}".encode(), plan)
        return known

    def numbered(self, node: ConvolutionNode) -> Iterator[tuple[int, _Plan]]:
        """All ways to compute a convolution, best first, with the number of their engine."""
        graph = self._graph(node)
        for mode in _MODES:
            for configuration in self._configurations(graph, mode):
                number = self._fit_engine(configuration, node)
                plan = None if number is None else self._planned(configuration)
                if number is not None and plan is not None:
                    yield number, plan

    def _planned(self, configuration: Descriptor) -> _Plan | None:
        plan = self._new(cudnn.PLAN)
        if self._device is not None:
            plan.set(407, cudnn.DESCRIPTOR, self._device)
        else:
            plan.set(400, cudnn.HANDLE, self._handle)
        plan.set(401, cudnn.DESCRIPTOR, configuration)
        if not plan.ends():
            return None
        (nbytes,) = plan.numbers(402, cudnn.INTEGER, 1)
        return _Plan(plan, nbytes) if nbytes <= _LARGEST_WORKSPACE else None

    def _configurations(self, graph: Descriptor, mode: int) -> Sequence[Descriptor]:
        """What the library proposes, best first."""
        heuristics = self._new(cudnn.HEURISTICS)
        heuristics.set(201, cudnn.DESCRIPTOR, graph)
        heuristics.set(200, cudnn.HEURISTICS_MODE, mode)
        if self._device is not None:
            heuristics.set(204, cudnn.DESCRIPTOR, self._device)
        if not heuristics.ends():
            return ()
        made = [self._new(cudnn.CONFIGURATION) for _ in range(_MOST_PROPOSALS)]
        return made[: heuristics.fill(202, made)]

    def _fit_engine(self, configuration: Descriptor, node: ConvolutionNode) -> int | None:
        """The number of an engine that gives the same bits in every run, by sums as exact as asked for."""
        engine = self._new(cudnn.ENGINE)
        configuration.fill(300, [engine])
        notes = engine.numbers(1303, cudnn.NUMERICAL_NOTE, 16)
        unfit = {_ROUNDS_SUMS, _FOURIER, _VARIES, _WINOGRAD}
        if node.dtype == "float32" and not node.tensor_float:
            unfit |= {_TENSOR_CORES, _ROUNDS_INPUTS}
        (number,) = engine.numbers(1301, cudnn.INTEGER, 1)
        fit = unfit.isdisjoint(notes) and number not in _WRONG.get(node.function, ())
        return number if fit else None

    # --- what is computed -------------------------------------------------------------------------

    def _graph(self, node: ConvolutionNode) -> Descriptor:
        pitch = node.pitches[node.result]
        result = self._tensor(node.result, node.shapes[node.result], node.stored, pitch)
        follows = self._follows(node)
        first = self._between(node, 0) if follows else result
        operations = [self._operation(node, first)]
        for number, (mode, other) in enumerate(follows, 1):
            then = self._between(node, number) if number < len(follows) else result
            operations.append(self._elementwise(node, mode, first, other, then))
            first = then
        graph = self._new(cudnn.GRAPH)
        graph.set(801, cudnn.DESCRIPTOR, *operations)
        if self._device is None:
            graph.set(800, cudnn.HANDLE, self._handle)
        graph.end()
        return graph

    def _operation(self, node: ConvolutionNode, result: Descriptor) -> Descriptor:
        """The convolution, or one of the products that its gradients are."""
        kind, convolution, filters, x, y, alpha, beta = _OPERATIONS[node.function]
        made = self._new(kind)
        made.set(convolution, cudnn.DESCRIPTOR, self._convolution(node))
        for attribute, name in ((x, _X), (filters, _FILTERS), (y, _Y)):
            is_result = name == node.result
            shape, pitch = node.shapes[name], node.pitches[name]
            tensor = result if is_result else self._tensor(name, shape, node.dtype, pitch)
            made.set(attribute, cudnn.DESCRIPTOR, tensor)
        made.set(alpha, _number(node), 1.0)
        made.set(beta, _number(node), 0.0)
        made.end()
        return made

    def _follows(self, node: ConvolutionNode) -> list[tuple[int, Descriptor | None]]:
        """What is done to a result, in the order that the library's engines have: modes and operands."""
        shape = node.shapes[node.result]
        found: list[tuple[int, Descriptor | None]] = []
        if node.added:
            found.append((_ADD, self._tensor(_ADDED, shape, node.stored)))
        if node.bias:
            vector = (*[1] * (len(shape) - 1), shape[-1])
            found.append((_ADD, self._tensor(_BIAS, vector, node.dtype)))
        return [*found, (_CUT, None)] if node.positive else found

    def _elementwise(
        self,
        node: ConvolutionNode,
        mode: int,
        x: Descriptor,
        other: Descriptor | None,
        y: Descriptor,
    ) -> Descriptor:
        """An operation for each element."""
        how = self._new(cudnn.POINTWISE)
        how.set(0, cudnn.POINTWISE_MODE, mode)
        how.set(1, cudnn.DATA_TYPE, _DTYPES[_summed_in(node)])
        how.end()
        made = self._new(cudnn.ELEMENTWISE)
        made.set(750, cudnn.DESCRIPTOR, how)
        made.set(751, cudnn.DESCRIPTOR, x)
        made.set(754, _number(node), 1.0)
        if other is not None:
            made.set(752, cudnn.DESCRIPTOR, other)
            made.set(755, _number(node), 1.0)
        made.set(753, cudnn.DESCRIPTOR, y)
        made.end()
        return made

    def _between(self, node: ConvolutionNode, number: int) -> Descriptor:
        """A tensor between two operations, which is nowhere in memory."""
        shape = node.shapes[node.result]
        return self._tensor(_BETWEEN + number, shape, _summed_in(node), virtual=True)

    def _convolution(self, node: ConvolutionNode) -> Descriptor:
        made = self._new(cudnn.CONVOLUTION)
        made.set(100, cudnn.DATA_TYPE, _DTYPES[_summed_in(node)])
        made.set(101, cudnn.CONVOLUTION_MODE, _CROSS_CORRELATION)
        made.set(106, cudnn.INTEGER, len(node.strides))
        before, after = zip(*node.padding, strict=True)
        for name, values in [
            (102, node.dilation), (103, node.strides), (104, after), (105, before),
        ]:  # fmt: skip
            made.set(name, cudnn.INTEGER, *values)
        made.end()
        return made

    def _tensor(
        self, name: int, shape: tuple[int, ...], dtype: str, pitch: int = 0, virtual: bool = False
    ) -> Descriptor:
        """A tensor [n, *places, c] whose places are `pitch` elements apart; packed where that is 0."""
        count, *places, channels = shape
        steps: list[int] = []
        step = pitch or channels
        for size in reversed(places):
            steps.insert(0, step)
            step *= size
        made = self._new(cudnn.TENSOR)
        made.set(901, cudnn.DATA_TYPE, _DTYPES[dtype])
        made.set(902, cudnn.INTEGER, count, channels, *places)
        made.set(903, cudnn.INTEGER, step, 1, *steps)
        made.set(906, cudnn.INTEGER, name)
        made.set(900, cudnn.INTEGER, _ALIGNED)
        if virtual:
            made.set(907, cudnn.BOOLEAN, True)
        made.end()
        return made

    def _new(self, kind: int) -> Descriptor:
        return Descriptor(self._library, kind)

    def _call(self, name: str, *arguments: Any) -> None:
        cudnn.check(self._library, name, getattr(self._library, name)(*arguments))


def _summed_in(node: ConvolutionNode) -> str:
    return "float64" if node.dtype == "float64" else "float32"


def _number(node: ConvolutionNode) -> int:
    """How factors are given."""
    return cudnn.DOUBLE if node.dtype == "float64" else cudnn.REAL
