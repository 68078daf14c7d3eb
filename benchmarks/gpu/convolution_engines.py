"""The engines of cuDNN for layers of networks: time of each, and whether its results are right.

python -m benchmarks.gpu.convolution_engines times|check|fused|strided [FILE.txt]

`times` runs every fit engine on layers of LeNet-5, AlexNet and ResNet-50 at their full batch: the first one
and the fastest. `check` runs all engines that give the same bits in every run on smaller batches, as they
are and as a graph, with equal and unequal padding, steps forward also with a sum, a bias and ReLU behind
them, and prints those that are far from PyTorch's result in float64; `fused` runs these steps forward alone,
`strided` the first engines on channels within others, of which none may change.
A file gets all numbers. Data are random; memory that is written, and workspaces, hold other numbers before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch
from cupy.cuda import nvrtc

from magmadnn.backends.cuda import _cudnn
from magmadnn.backends.cuda._cudnn_library import find_cudnn
from magmadnn.backends.cuda.engine import CONVOLUTIONS, ConvolutionNode

# (places, c, o, size, stride, padding, batch, dtype)
LAYERS = [
    (28, 1, 6, 5, 1, 2, 128, "float32"),
    (14, 6, 16, 5, 1, 0, 128, "float32"),
    (224, 3, 64, 11, 4, 2, 1024, "bfloat16"),
    (27, 64, 192, 5, 1, 2, 1024, "bfloat16"),
    (13, 384, 256, 3, 1, 1, 1024, "bfloat16"),
    (224, 3, 64, 7, 2, 3, 256, "bfloat16"),
    (56, 64, 64, 1, 1, 0, 256, "bfloat16"),
    (56, 64, 64, 3, 1, 1, 256, "bfloat16"),
    (56, 64, 256, 1, 1, 0, 256, "bfloat16"),
    (56, 128, 128, 3, 2, 1, 256, "bfloat16"),
    (28, 128, 128, 3, 1, 1, 256, "bfloat16"),
    (28, 512, 128, 1, 1, 0, 256, "bfloat16"),
    (14, 256, 256, 3, 1, 1, 256, "bfloat16"),
    (14, 256, 1024, 1, 1, 0, 256, "bfloat16"),
    (7, 512, 512, 3, 1, 1, 256, "bfloat16"),
]

CHECKED = (0, 1, 2, 3, 5, 7, 9, 11, 13)
MOST, FEW = 10, 3  # engines of a layer
APART = 16  # channels, of which multiples are between images' places that lie apart
TOLERANCE = {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 1e-2, "float16": 2e-3}
ALL = (*sorted(CONVOLUTIONS), "fprop with what follows")
TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

STREAM = cupy.cuda.Stream(non_blocking=True)
LINES: list[str] = []


def opened() -> _cudnn.Convolutions:
    """cuDNN on the stream of this file."""
    cupy.cuda.cublas.destroy(cupy.cuda.cublas.create())
    return _cudnn.Convolutions(find_cudnn(nvrtc.getVersion()[0]), STREAM.ptr)


def node_of(
    function: str, layer: Any, dtype: str, tensor_float: bool, more: int = 0
) -> ConvolutionNode:
    """A layer's convolution; `more` places of padding after each axis."""
    places, c, o, size, stride, pad, batch, _ = layer
    out = (places + 2 * pad + more - size) // stride + 1
    shapes = (batch, places, places, c), (o, size, size, c), (batch, out, out, o)
    return ConvolutionNode(
        function, dtype, dtype, tensor_float, shapes, (stride,) * 2, ((pad, pad + more),) * 2, (1, 1), 1,
        0, 0, 0, 0,
    )  # fmt: skip


def tensors(node: ConvolutionNode) -> list[torch.Tensor]:
    """Random x, w and y, and bias and what is added where there are some."""
    torch.manual_seed(1)
    shapes = [*node.shapes]
    if node.bias:
        shapes += [node.shapes[2][-1:], node.shapes[2]]
    dtype = TORCH[node.dtype]
    return [torch.randn(s, device="cuda", dtype=torch.float32).to(dtype) for s in shapes]


def reference(node: ConvolutionNode, given: list[torch.Tensor]) -> torch.Tensor:
    """The result by PyTorch in float64."""
    x, w, y = (t.double().permute(0, 3, 1, 2) for t in given[:3])
    (top, bottom), (left, right) = node.padding
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    padded = torch.nn.functional.pad(x, (left, right, top, bottom))
    made = torch.nn.functional.conv2d(padded, w, stride=node.strides)
    if node.function != "fprop":
        made = torch.autograd.grad(made, x if node.function == "dgrad" else w, y)[0]
    made = made.detach().permute(0, 2, 3, 1)
    return torch.relu(made + given[4].double() + given[3].double()) if node.bias else made


def apart(node: ConvolutionNode) -> ConvolutionNode:
    """The same of images whose channels lie within more channels."""
    x, _, y = (-(-shape[-1] // APART) * APART + APART for shape in node.shapes)
    return replace(node, pitches=(x, 0, y))


def within(node: ConvolutionNode, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors as parts of larger ones."""
    found = []
    for tensor, pitch in zip(given, node.pitches, strict=False):
        if pitch:
            whole = torch.full((*tensor.shape[:-1], pitch), 3.0, device="cuda", dtype=tensor.dtype)
            part = whole[..., APART // 2 : APART // 2 + tensor.shape[-1]]
            part.copy_(tensor)
            tensor = part
        found.append(tensor)
    return found


def strided() -> None:
    """Errors of the first engines for such images; time beside that of packed ones."""
    calls, wrong = opened(), {}
    for layer in (LAYERS[k] for k in (7, 11, 13)):
        for dtype in ("float32", "bfloat16", "float16"):
            for function in sorted(CONVOLUTIONS):
                node = node_of(function, layer, dtype, True)
                given, lines = tensors(node), list[str]()
                exact = reference(node, given)
                for one, arrays in ((node, given), (apart(node), within(apart(node), given))):
                    plans = list(ways(calls, one, FEW))
                    taken = [_least(calls, one, plan, arrays) for _, plan in plans]
                    lines.append(f"{min(taken, default=float('nan')):.0f}")
                    for (number, plan), _ in zip(plans, taken, strict=True):
                        for error, how in errors(calls, one, plan, arrays, exact):
                            if not error < TOLERANCE["tf32" if dtype == "float32" else dtype]:
                                wrong[function, number, dtype, how, bool(any(one.pitches))] = error
                print(f"{node.title}: packed {lines[0]} us, apart {lines[1]} us", flush=True)
    print("wrong:", wrong or "none", flush=True)


def _least(calls: _cudnn.Convolutions, node: ConvolutionNode, plan: Any, given: Any) -> float:
    """Microseconds of the fastest of some runs."""
    room = torch.empty(max(plan.workspace, 1), device="cuda", dtype=torch.uint8)
    marks = [cupy.cuda.Event() for _ in range(2)]
    best = float("inf")
    for _ in range(4):
        marks[0].record(STREAM)
        run(calls, node, plan, given, room)
        marks[1].record(STREAM)
        marks[1].synchronize()
        best = min(best, 1e3 * cupy.cuda.get_elapsed_time(*marks))
    return best


def ways(
    calls: _cudnn.Convolutions, node: ConvolutionNode, most: int = MOST
) -> Iterator[tuple[int, Any]]:
    """Numbers of engines, and their plans, best first."""
    found = 0
    for number, plan in calls.numbered(node):
        yield number, plan
        found += 1
        if found == most:
            return


def run(
    calls: _cudnn.Convolutions, node: ConvolutionNode, plan: Any, given: Any, room: Any
) -> None:
    """Give the stream one convolution by a plan."""
    calls._plans[node.bare] = {b"": plan}
    x, w, y, *more = (t.data_ptr() for t in given)
    bias, added = (*more, 0, 0)[:2]
    calls.call(replace(node, x=x, w=w, y=y, workspace=room.data_ptr(), bias=bias, added=added))


def times() -> None:
    """Time of engines."""
    calls = opened()
    print("cuDNN", calls.version)
    for layer in LAYERS:
        places, c, o, size, stride, _, batch, dtype = layer
        line = f"{batch} x {places} {c}->{o} {size}/{stride} {dtype}:"
        for function in sorted(CONVOLUTIONS):
            node = node_of(function, layer, dtype, True)
            given, taken = tensors(node), []
            begun = time.perf_counter()
            plans = list(ways(calls, node))
            planned = time.perf_counter() - begun
            for _, plan in plans:
                taken.append(_least(calls, node, plan, given))
            k = int(np.argmin(taken))
            line += f" {function} {taken[0]:.0f} best {taken[k]:.0f} (#{k})"
            LINES.append(f"{line} planned in {planned:.3f} s; engine, us, bytes: ")
            LINES.append(
                str([(e, round(t), p.workspace) for (e, p), t in zip(plans, taken, strict=True)])
            )
        print(line, flush=True)


def fused() -> None:
    """Errors of engines of steps forward with what follows them."""
    check(("fprop",), fused=True)


def check(functions: Sequence[str] = ALL, fused: bool = False) -> None:
    """Errors of engines."""
    calls, wrong = opened(), {}
    _cudnn._WRONG = {}
    kinds = [("float32", False), ("float32", True), ("bfloat16", True), ("float16", True)]
    for layer in (LAYERS[k] for k in CHECKED):
        small = (*layer[:6], max(layer[6] // 16, 16), layer[7])
        for more in (0, 1):
            for dtype, tensor_float in kinds:
                for function in functions:
                    node = node_of(function.partition(" ")[0], small, dtype, tensor_float, more)
                    if fused or " " in function:
                        node = replace(node, bias=1, added=1, positive=True)
                    given = tensors(node)
                    exact = reference(node, given)
                    limit = TOLERANCE["tf32" if dtype == "float32" and tensor_float else dtype]
                    plans = list(ways(calls, node))
                    LINES.append(f"{len(plans)} engines of {node.title}")
                    for number, plan in plans:
                        for error, how in errors(calls, node, plan, given, exact):
                            LINES.append(
                                f"{error:.2e} {how} engine {number} {node.title} {node.padding}"
                            )
                            if not error < limit:
                                key = (function, number, dtype, tensor_float, more, how)
                                wrong[key] = max(wrong.get(key, 0), error)
    none = sum(line.startswith("0 engines") for line in LINES)
    print(len(LINES), f"lines, {none} without an engine; wrong:", wrong or "none", flush=True)


def errors(
    calls: Any, node: ConvolutionNode, plan: Any, given: Any, exact: torch.Tensor
) -> Iterator[tuple[float, str]]:
    """The relative errors of a plan, as it is and as a graph."""
    room = torch.empty(plan.workspace + 1, device="cuda", dtype=torch.uint8)
    goal = given[node.result]
    for how in ("alone", "in a graph"):
        room.fill_(0xCB)
        goal.fill_(7)
        torch.cuda.synchronize()
        if how == "alone":
            run(calls, node, plan, given, room)
        else:
            STREAM.begin_capture(2)
            run(calls, node, plan, given, room)
            graph = STREAM.end_capture()
            churn = [np.full(1 << 12, 0xAB, np.uint8) for _ in range(64)]
            graph.launch(STREAM)
            del churn
        STREAM.synchronize()
        error = float((goal.double() - exact).norm() / exact.norm())
        yield error if _alone(goal) else float("inf"), how


def _alone(part: torch.Tensor) -> bool:
    """Whether nothing around a part of a larger tensor has changed."""
    whole, begin = part._base, APART // 2
    if whole is None:
        return True
    around = whole[..., :begin], whole[..., begin + part.shape[-1] :]
    return all(bool((channels == 3).all()) for channels in around)


if __name__ == "__main__":
    what, *files = sys.argv[1:]
    {"times": times, "check": check, "fused": fused, "strided": strided}[what]()
    for file in files:
        Path(file).write_text("\n".join(LINES) + "\n")
