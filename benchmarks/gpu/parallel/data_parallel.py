"""Training on several GPUs beside PyTorch's DDP: images a second of the papers' network and AlexNet.

    python benchmarks/gpu/parallel/data_parallel.py [--gpus 1,2] [--cases papers] [--torch]
        [--ways data,narrow,optimiser,parameters,hybrid,hybrid2,model]

Each number of GPUs is a job of its own, one process a GPU: ours by `magmadnn launch`, PyTorch's by its own
processes, DDP over NCCL, eager and with the step in a CUDA graph; the better of the two counts, of ResNet-50
compiled. "narrow" sends gradients in bfloat16, ours and PyTorch's; "hybrid2" has Dense layers on the first
two GPUs. Random images, as many for each GPU ("batch") or for all together ("whole"), in epochs of "steps"
batches; seconds of the best epoch behind the first. The first case also compares parameters after some steps
with those of one GPU in float32 on the same batches.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np

ALEXNET = {"steps": 8, "shape": (224, 224, 3), "classes": 1000, "precision": "mixed_bf16"}
CASES: dict[str, dict[str, Any]] = {
    "papers": {"batch": 100, "steps": 300, "shape": (784,), "classes": 10, "precision": "tf32"},
    "alexnet256": ALEXNET | {"whole": 256, "steps": 24},
    "alexnet1024": ALEXNET | {"whole": 1024, "steps": 48, "dtype": "uint8"},
    "resnet50": ALEXNET | {"batch": 256, "steps": 6},
}


def rows_of(case: dict[str, Any], ranks: int) -> int:
    """Images of a batch for each GPU."""
    return int(case["batch"] if "batch" in case else case["whole"] // ranks)


def data(case: dict[str, Any], ranks: int) -> tuple[Any, Any]:
    """Random images and classes for all ranks, the same on each."""
    draw = np.random.default_rng(0)
    rows = rows_of(case, ranks) * case["steps"] * ranks
    some = draw.standard_normal((min(rows, 512), *case["shape"]), np.float32)
    if case.get("dtype") == "uint8":  # as images are kept, where a set of many batches is large
        some = np.clip(some + 2, 0, 4).astype(np.uint8)
    x = np.resize(some, (rows, *case["shape"]))  # again and again: to draw more takes long
    return x, draw.integers(0, case["classes"], rows)


def model(name: str, device: str, precision: str) -> Any:
    """Ours."""
    import magmadnn as md

    given: dict[str, Any] = {
        "loss": "cross_entropy",
        "optimizer": md.optim.SGD(0.01),
        "device": device,
        "precision": precision,
        "seed": 1,
    }
    if name.startswith("alexnet"):
        return md.models.alexnet((224, 224, 3), 1000, dropout=0.0, **given)
    if name == "resnet50":
        return md.models.resnet50((224, 224, 3), 1000, **given)
    layers: list[Any] = [md.layers.Input((784,))]
    layers += [md.layers.Dense(528, activation="sigmoid") for _ in range(3)]
    return md.Model([*layers, md.layers.Dense(10)], **given)


def ours(name: str, kind: str) -> None:
    """A rank of ours."""
    import magmadnn as md

    comm, case = md.comm.world(), CASES[name]
    x, y = data(case, comm.size)
    ways: dict[str, Any] = {
        "data": md.parallel.DataParallel(),
        "narrow": md.parallel.DataParallel(wire="bfloat16"),
        "optimiser": md.parallel.DataParallel(shard="optimiser"),
        "parameters": md.parallel.DataParallel(shard="parameters"),
        "hybrid": md.parallel.Hybrid(),
        "model": md.parallel.ModelParallel(),
    }
    device = f"cuda:{comm.rank}"
    net = model(name, device, case["precision"])
    way = ways[kind] if kind in ways else on_first(net, int(kind.removeprefix("hybrid")))
    size = rows_of(case, comm.size) * comm.size
    history = net.fit(x, y, batch_size=size, epochs=4, shuffle=False, verbose=False, parallel=way)
    rate = max(row["samples_per_second"] for row in history.rows[1:])
    apart = difference(name, comm, device, way) if name == "papers" else None
    if comm.rank == 0:
        print(json.dumps({"rate": rate, "apart": apart}), flush=True)


def on_first(net: Any, count: int) -> Any:
    """Dense layers on the first GPUs, by columns and rows in turns."""
    import magmadnn as md

    on = tuple(range(count))
    turns = [md.dmath.Columns(on=on), md.dmath.Rows(on=on)]
    dense = [
        k.rsplit("/", 1)[0] for k, v in net.values().items() if k.endswith("kernel") and v.ndim == 2
    ]
    return md.parallel.Hybrid({path: turns[k % 2] for k, path in enumerate(dense)})


def difference(name: str, comm: Any, device: str, way: Any) -> float:
    """How far parameters are from those of one GPU after 20 steps in float32, relative to the largest."""
    x, y = data(CASES[name] | {"steps": 20}, comm.size)
    found = []
    for parallel in (way, False):
        net = model(name, device, "float32")
        size = CASES[name]["batch"] * comm.size
        net.fit(x, y, batch_size=size, epochs=1, shuffle=False, verbose=False, parallel=parallel)
        found.append({k: np.asarray(v) for k, v in net.values().items()})
    shared, alone = found
    return max(float(np.abs(shared[k] - alone[k]).max() / np.abs(alone[k]).max()) for k in alone)


def peers(name: str, way: str, rank: int, size: int, port: int) -> None:
    """A rank of PyTorch's."""
    import torch
    from torch import nn

    case = CASES[name]
    torch.cuda.set_device(rank)
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # else no graph can be captured
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("nccl", rank=rank, world_size=size)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    if name.startswith("alexnet"):
        wide = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1)]
        wide.append((256, 256, 3, 1, 1))
        parts: list[Any] = []
        for number, (a, b, k, s, p) in enumerate(wide):
            parts += [nn.Conv2d(a, b, k, s, p), nn.ReLU()]
            parts += [nn.MaxPool2d(3, 2)] if number in (0, 1, 4) else []
        parts += [nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
        parts.append(nn.Linear(4096, 1000))
    elif name == "resnet50":
        from benchmarks.oracles.torchvision_networks import ResNet

        parts = [ResNet([3, 4, 6, 3], True, 1000)]
    else:
        sizes = (784, 528, 528, 528)
        parts = []
        for a, b in pairwise(sizes):
            parts += [nn.Linear(a, b), nn.Sigmoid()]
        parts.append(nn.Linear(528, 10))
    side = torch.cuda.Stream()  # where DDP has to be made for a capture
    torch.cuda.set_stream(side)
    net = nn.Sequential(*parts).cuda().to(memory_format=torch.channels_last)
    net = nn.parallel.DistributedDataParallel(net, device_ids=[rank], broadcast_buffers=False)
    if way == "narrow":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    rule = torch.optim.SGD(net.parameters(), 0.01)
    rows, narrow = rows_of(case, size), case["precision"] == "mixed_bf16"
    x = torch.randn(rows, *case["shape"], device="cuda")
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2)  # channels last in memory
    y = torch.randint(0, case["classes"], (rows,), device="cuda")

    network: Any = torch.compile(net) if name == "resnet50" else net

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=narrow, cache_enabled=False):
            loss = nn.functional.cross_entropy(network(x), y)
        rule.zero_grad(set_to_none=True)
        loss.backward()
        rule.step()

    def seconds(run: Any) -> float:
        best = float("inf")
        for _ in range(4):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(case["steps"]):
                run()
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    if name == "resnet50":
        step()
        tell(rank, name, size, compiled=seconds(step))
        os._exit(0)
    tell(rank, name, size, eager=seconds(step))
    graph = torch.cuda.CUDAGraph()
    for _ in range(11):  # as DDP asks before a capture
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        step()
    tell(rank, name, size, graph=seconds(graph.replay))
    os._exit(0)  # to destroy the group while a captured graph holds it does not come to an end


def tell(rank: int, name: str, size: int, **seconds: float) -> None:
    """Print what one way of PyTorch's takes, as a capture may not come to an end."""
    if rank == 0:
        import torch

        case = CASES[name]
        images = rows_of(case, size) * size * case["steps"]
        rates = {way: images / taken for way, taken in seconds.items()}
        steps = {way: 1e3 * taken / case["steps"] for way, taken in seconds.items()}
        versions = (
            f"PyTorch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
        )
        told = {"rate": max(rates.values()), "apart": None, "ms": steps, "versions": versions}
        print(json.dumps(told), flush=True)


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def started(name: str, size: int, torch: bool, way: str) -> dict[str, Any]:
    """What one job tells."""
    own = [__file__, "--case", name, "--ways", way]
    if not torch:
        launch = ["-m", "magmadnn", "launch", "-n", str(size)] if size > 1 else []
        done = subprocess.run(
            [sys.executable, *launch, *own], capture_output=True, text=True, timeout=180
        )
        outs, errors = [done.stdout], done.stderr
    else:
        port = str(free_port())
        jobs = [
            subprocess.Popen(
                [sys.executable, *own, "--rank", str(r), "--size", str(size), "--port", port],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(size)
        ]
        pairs = [finished(job) for job in jobs]
        outs, errors = [out for out, _ in pairs], pairs[0][1]
    lines = [line for out in outs for line in out.splitlines() if line.startswith("{")]
    if not lines:
        print(errors[-3000:])
        return {"rate": float("nan"), "apart": None}
    told = [json.loads(line) for line in lines]
    best: dict[str, Any] = max(told, key=lambda one: one["rate"])
    best["ms"] = {way: ms for one in told for way, ms in one.get("ms", {}).items()}
    return best


def finished(job: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process printed; one that does not end in two minutes is ended."""
    try:
        return job.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        job.kill()
        return job.communicate()


def main() -> None:
    """Print a table, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--cases", default="papers,alexnet256,alexnet1024")
    parser.add_argument("--ways", default="data")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--case")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.case is not None:
        if options.rank is None:
            ours(options.case, options.ways)
        else:
            peers(options.case, options.ways, options.rank, options.size, options.port)
        return
    for name in options.cases.split(","):
        case = CASES[name]
        batch = f"{case['batch']} a GPU" if "batch" in case else f"{case['whole']} in all"
        print(f"{name}, batch {batch}, {case['precision']}")
        for size in map(int, options.gpus.split(",")):
            ways = options.ways.split(",") if size > 1 else ["data"]
            runs = [(way, False) for way in ways]
            if options.torch:  # of PyTorch's ways these two are there
                runs += [(way, True) for way in ways if way in ("data", "narrow")]
            for way, torch in runs:
                found = started(name, size, torch, way)
                title = f"PyTorch DDP, {way}" if torch else f"ours, {way}"
                apart = "" if found["apart"] is None else f"  apart {found['apart']:.1e}"
                for way, ms in found.get("ms", {}).items():
                    apart += f"  {way} {ms:.3f} ms a step"
                apart += f"  ({found['versions']})" if "versions" in found else ""
                print(
                    f"  {size} GPU  {title:20} {found['rate']:12,.0f} images/s{apart}", flush=True
                )


if __name__ == "__main__":
    main()
