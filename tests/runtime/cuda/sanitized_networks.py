"""Small networks trained on a GPU, each against the processor: run under compute-sanitizer.

All of a step in one block; launches that became one; a last layer with its loss; rows, columns, random
numbers; both half precisions; graphs of eight steps, whose kernels begin before those in front have ended.
"""

from __future__ import annotations

from typing import Any

import magmadnn as md
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import distance, network, samples

SIZES = (13, 17, 11, 5)
BATCH, STEPS = 8, 11
# One update more or less where half precision rounds the other way; else a few roundings for each update
ALLOWED = {"float32": STEPS * 64 * 2.0**-23, "tf32": 2e-3, "mixed_bf16": 5e-3, "mixed_fp16": 1e-3}


def normalised(**where: Any) -> Any:
    layers = md.layers
    made = [layers.Input((13,)), layers.Dense(17), layers.BatchNorm(), layers.Activation("gelu")]
    made += [layers.Dropout(0.3), layers.LayerNorm(), layers.Dense(5)]
    rate = md.optim.SGD(0.1, momentum=0.9, clip_norm=0.5)
    return md.Model(made, loss="cross_entropy", optimizer=rate, seed=5, **where)


def trained(made: Any) -> Any:
    x, y = samples(BATCH * STEPS, SIZES[0], SIZES[-1])
    made.fit(x, y, batch_size=BATCH, verbose=0)
    made.predict(x[:5])
    return made


def compare(name: str, made: Any, precision: str = "float32", **more: Any) -> None:
    there, here = (
        trained(made(device=device, precision=precision, **more)) for device in ("cuda", "cpu")
    )
    off = distance(there, here)
    assert off <= ALLOWED[precision], (name, precision, off)


def perceptron(**where: Any) -> Any:
    return network(SIZES, md.optim.SGD(0.1), activation="relu", **where)


def main() -> None:
    """Train all of them; says so when they are right."""
    compare("one kernel", perceptron)
    compare("one kernel", normalised)
    small.MOST_OPERATIONS = 0  # as larger networks are run
    compare("launches", normalised)
    for precision in ("tf32", "mixed_bf16", "mixed_fp16"):
        compare("launches", perceptron, precision)
    print("networks are right")


if __name__ == "__main__":
    main()
