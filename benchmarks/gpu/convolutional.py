"""Convolutional networks on a GPU: steps of `fit`, and the engines of cuDNN for their layers.

python -m benchmarks.gpu.convolutional fit lenet5 28 1 128 tf32 [products] [packed] [paper] [PROFILE.txt]
python -m benchmarks.gpu.convolutional torch resnet50 224 3 256 bf16 [compiled]

`fit` prints microseconds of a step with data on the device, `products` without cuDNN, `packed`
with copies where convolutions could write into concatenations and read slices of them, `paper` the
variant of the paper; a profile is written to a file;
`torch` the same of the network as torchvision builds it, channels last, in autocast (bf16) or TF32. Data are
random, times the least of three.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 3


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
    from magmadnn.graph.op import REGISTRY

    engine = cuda.device_engine(0)
    if "products" in more:
        type(engine).functions = property(lambda self: frozenset())  # type: ignore[misc]
    if "packed" in more:
        for op in REGISTRY.values():
            if op.library is not None:
                object.__setattr__(op.library, "strided", ())
    steps = 4 if size > 100 else 100
    outputs = 1000 if size > 100 else 10
    rng = np.random.default_rng(0)
    x = rng.random((steps * batch, size, size, channels), np.float32)
    y = rng.integers(0, outputs, len(x))
    model = getattr(md.models, name)(
        (size, size, channels), outputs, device="cuda", precision=precision,
        loss="cross_entropy", optimizer=md.optim.SGD(0.01, momentum=0.9),
        **({"variant": "paper"} if "paper" in more else {}),
    )  # fmt: skip
    begun = time.perf_counter()
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0)
    first = time.perf_counter() - begun
    epochs = 5 if size > 100 else 20
    seconds = _least(lambda: model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0))
    each = seconds / steps / epochs
    plan = model.plan()
    title = " ".join([name, str(batch), precision, *(w for w in more if "." not in w)])
    print(f"{title}: {1e6 * each:.1f} us a step, {batch / each:.0f} images/s", end="; ")
    print(f"first epoch {first:.1f} s; {plan.count('library')} lines of libraries", flush=True)
    for path in (word for word in more if word.endswith(".txt")):
        text = str(model.profile(x[:batch], y[:batch], batch_size=batch))
        Path(path).write_text(f"{text}\n{model.plan(batch_size=batch)}\n")


def torch_fit(name: str, size: int, channels: int, batch: int, precision: str, *more: str) -> None:
    """Time the same steps in PyTorch."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    made = _torch_network(name).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(made.parameters(), 0.01, momentum=0.9)
    x = torch.rand(batch, channels, size, size, device="cuda")
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000 if size > 100 else 10, (batch,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
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


def _torch_network(name: str) -> Any:
    """The network for 1000 classes; LeNet-5 for 10. torchvision need not be there."""
    from torch import nn

    from benchmarks.oracles import torchvision_networks as networks
    from benchmarks.oracles.zoo_training_torch import LeNet5

    if name == "lenet5":
        return LeNet5()
    if name == "alexnet":
        made = networks.alexnet(1000)
        made.classifier[1] = nn.Linear(256 * 36, 4096)
        return made
    makers = {
        "resnet18": lambda: networks.ResNet([2, 2, 2, 2], False, 1000),
        "resnet50": lambda: networks.ResNet([3, 4, 6, 3], True, 1000),
        "googlenet": lambda: networks.GoogLeNet(1000),
    }
    return makers[name]()


if __name__ == "__main__":
    what, name, size, channels, batch, precision, *more = sys.argv[1:]
    run = fit if what == "fit" else torch_fit
    run(name, int(size), int(channels), int(batch), precision, *more)
