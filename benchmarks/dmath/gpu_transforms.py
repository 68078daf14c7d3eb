"""Fourier transforms on one GPU (cuFFT) and on several: right first, then seconds there and back.

    python -m benchmarks.dmath.gpu_transforms [--gpus 2]

Bytes are those that every GPU sends for one transform; the link's share is counted in them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.dmath.gpu_precision import best

CASES = {"8192 x 8192": (8192, 8192), "16384 x 16384": (16384, 16384), "512 cubed": (512, 512, 512)}


def check(w: Any) -> None:
    """Against NumPy's, in slabs and pencils, of real and complex numbers, primes among the sizes."""
    draw = np.random.default_rng(0)
    for shape in ((53, 64), (31, 24, 40)):
        x = draw.standard_normal(shape)
        for kind in ("slabs", "pencils"):
            A = w.array(x, layout=md.dmath.Rows())
            found = np.asarray(md.dmath.fft.fftn(A, decomposition=kind))
            np.testing.assert_allclose(found, np.fft.fftn(x), atol=1e-10)
            half = md.dmath.fft.rfftn(A, decomposition=kind)
            np.testing.assert_allclose(np.asarray(half), np.fft.rfftn(x), atol=1e-10)
            back = np.asarray(md.dmath.fft.ifftn(md.dmath.fft.fftn(A, decomposition=kind)))
            np.testing.assert_allclose(back, x, atol=1e-10)
    print("transforms are right", flush=True)


def seconds(w: Any, shape: tuple[int, ...], layout: Any) -> tuple[float, float]:
    """Of a transform of complex64 there and back, and the bytes that each GPU sends for one."""
    x = w.random(shape[:1] + (1,) * (len(shape) - 1), seed=1, dtype="float32", layout=layout)
    spread = md.dmath.multiply(x, w.ones(shape, dtype="float32", layout=layout), layout=layout)
    X = spread.astype("complex64")
    before = w.counters()["sent_bytes"]
    md.dmath.fft.fftn(X)
    sent = (w.counters()["sent_bytes"] - before) / w.size
    return best(lambda: md.dmath.fft.ifftn(md.dmath.fft.fftn(X)), w.wait, 3), sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2)
    arguments = parser.parse_args()
    import cupy

    there = cupy.cuda.runtime.getDeviceCount()
    print(f"{there} x {cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}")
    check(md.dmath.cuda)
    alone = {}
    for name, shape in CASES.items():
        alone[name] = seconds(md.dmath.cuda, shape, None)[0]
        print(f"{name:15} one GPU {alone[name] * 1e3:9.3f} ms there and back", flush=True)
    if there < arguments.gpus:
        print(f"{there} GPU: the rows of {arguments.gpus} were not run")
        return
    cupy.get_default_memory_pool().free_all_blocks()
    with md.workers(arguments.gpus) as workers:
        w = md.dmath.distributed(workers, device="cuda")
        check(w)
        for name, shape in CASES.items():
            took, sent = seconds(w, shape, md.dmath.Rows())
            share = alone[name] / took / arguments.gpus
            print(
                f"{name:15} {arguments.gpus} GPUs {took * 1e3:9.3f} ms  {share:4.0%}  "
                f"{sent / 1e9:.3f} GB sent by each for one transform",
                flush=True,
            )


if __name__ == "__main__":
    main()
