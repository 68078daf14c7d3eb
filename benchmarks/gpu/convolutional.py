"""Convolutional networks on a GPU: steps of `fit`, and the engines of cuDNN for their layers.

python -m benchmarks.gpu.convolutional fit lenet5 28 1 128 tf32 [products]
python -m benchmarks.gpu.convolutional torch resnet50 224 3 256 bf16 [compiled]
python -m benchmarks.gpu.convolutional engines

`fit` prints microseconds of a step with data on the device, `products` without cuDNN; `torch` the same of
torchvision's network, channels last, in autocast. `engines` prints for layers of LeNet-5, AlexNet and
ResNet-50 the time of cuDNN's first fit engine and of its fastest. Data are random; times the least of three.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

ROUNDS = 3
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


def _least(run: Callable[[], Any]) -> float:
    """Seconds of the fastest of some runs."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


def fit(name: str, size: int, channels: int, batch: int, precision: str, *more: str) -> None:
    """Time steps of `fit`."""
    import magmadnn as md
    from magmadnn.backends import cuda

    engine = cuda.device_engine(0)
    if "products" in more:
        type(engine).functions = property(lambda self: frozenset())  # type: ignore[misc]
    steps = 4 if size > 100 else 100
    outputs = 1000 if size > 100 else 10
    rng = np.random.default_rng(0)
    x = rng.random((steps * batch, size, size, channels), np.float32)
    y = rng.integers(0, outputs, len(x))
    model = getattr(md.models, name)(
        (size, size, channels), outputs, device="cuda", precision=precision,
        loss="cross_entropy", optimizer=md.optim.SGD(0.01, momentum=0.9),
    )  # fmt: skip
    begun = time.perf_counter()
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0)
    first = time.perf_counter() - begun
    epochs = 5 if size > 100 else 20
    seconds = _least(lambda: model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0))
    each = seconds / steps / epochs
    plan = model.plan()
    title = " ".join([name, str(batch), precision, *more])
    print(f"{title}: {1e6 * each:.1f} us a step, {batch / each:.0f} images/s", end="; ")
    print(f"first epoch {first:.1f} s; {plan.count('library')} lines of libraries", flush=True)
    if size > 100:
        print(str(model.profile(x[:batch], y[:batch]))[:6000], flush=True)


def torch_fit(name: str, size: int, channels: int, batch: int, precision: str, *more: str) -> None:
    """Time the same steps in PyTorch."""
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    made = getattr(torchvision.models, name)().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(made.parameters(), 0.01, momentum=0.9)
    x = torch.rand(batch, channels, size, size, device="cuda")
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (batch,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(made(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    if "compiled" in more:
        made = torch.compile(made)

    def run() -> None:
        for _ in range(10):
            step()
        torch.cuda.synchronize()

    begun = time.perf_counter()
    run()
    first = time.perf_counter() - begun
    each = _least(run) / 10
    peak = torch.cuda.max_memory_allocated() / 2**30
    title = " ".join(["torch", name, str(batch), precision, *more])
    print(f"{title}: {1e6 * each:.1f} us a step, {batch / each:.0f} images/s", end="; ")
    print(f"first steps {first:.1f} s, peak {peak:.1f} GiB", flush=True)


def engines() -> None:
    """Time the engines of layers."""
    import cupy
    from cupy.cuda import nvrtc

    from magmadnn.backends.cuda._cudnn import Convolutions
    from magmadnn.backends.cuda._cudnn_library import find_cudnn
    from magmadnn.backends.cuda.engine import CONVOLUTIONS, ConvolutionNode

    cupy.cuda.cublas.destroy(cupy.cuda.cublas.create())
    library = find_cudnn(nvrtc.getVersion()[0])
    stream = cupy.cuda.Stream(non_blocking=True)
    calls = Convolutions(library, stream.ptr)
    print("cuDNN", calls.version, flush=True)
    rng = cupy.random.default_rng(0)
    for places, c, o, size, stride, pad, batch, dtype in LAYERS:
        out = (places + 2 * pad - size) // stride + 1
        shapes = (batch, places, places, c), (o, size, size, c), (batch, out, out, o)
        buffers = [rng.standard_normal(int(np.prod(s)), np.float32) for s in shapes]
        if dtype == "bfloat16":  # the upper halves of float32
            buffers = [(b.view(np.uint32) >> 16).astype(np.uint16) for b in buffers]
        line = f"{batch} x {places} {c}->{o} {size}/{stride} {dtype}:"
        for function in sorted(CONVOLUTIONS):
            node = ConvolutionNode(
                function, dtype, dtype, True, shapes, (stride,) * 2, ((pad, pad),) * 2, (1, 1), 1,
                0, 0, 0, 0,
            )  # fmt: skip
            begun = time.perf_counter()
            plans = []
            for plan in calls._proposals(node):
                plans.append(plan)
                if len(plans) == 6:
                    break
            planned = time.perf_counter() - begun
            room = cupy.empty(max([p.workspace for p in plans] + [1]), np.uint8)
            x, w, y = (b.data.ptr for b in buffers)
            times = []
            for plan in plans:
                calls._plans[node] = plan
                call = replace(node, x=x, w=w, y=y, workspace=room.data.ptr)
                marks = [cupy.cuda.Event() for _ in range(2)]
                best = float("inf")
                for _ in range(3):
                    marks[0].record(stream)
                    calls.call(call)
                    marks[1].record(stream)
                    marks[1].synchronize()
                    best = min(best, 1e3 * cupy.cuda.get_elapsed_time(*marks))
                times.append(best)
            k = int(np.argmin(times))
            line += f" {function} {times[0]:.0f} best {times[k]:.0f} (#{k} of {len(times)}, "
            line += f"{plans[0].workspace >> 20} MiB, {planned:.2f} s)"
        print(line, flush=True)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "engines":
        engines()
    else:
        name, size, channels, batch, precision, *more = rest
        run = fit if what == "fit" else torch_fit
        run(name, int(size), int(channels), int(batch), precision, *more)
