"""For tests of tuning: a product, and a machine with a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.emit.llvm.target import host
from magmadnn.compiler.tune import Tuner
from magmadnn.compiler.tune_file import Records

SPEED = 2e9  # products per second, of the machine in these tests


def part(m: int = 307, k: int = 521, n: int = 263) -> dict[str, int]:
    strides = {"lda": k, "ldb": n, "ldc": n}
    return {"row0": 0, "row1": m, "column0": 0, "column1": n, "k": k, **strides}


class Machine:
    """A clock, and runs that move it: each way takes `factor` times what the product takes by rule."""

    def __init__(self, factors: Mapping[str, float] | None = None, setting_up: float = 0.0) -> None:
        self.now, self.runs, self.setting_up = 100.0, 0, setting_up
        self.factors, self.disturbed = dict(factors or {}), set[int]()

    def clock(self) -> float:
        return self.now

    def runner(self, gemm, values, ways):
        self.now += self.setting_up

        def run(name: str) -> None:
            self.runs += 1
            usual = values["row1"] * values["k"] * values["column1"] / SPEED
            self.now += (
                usual * self.factors.get(name, 1.0) * (9 if self.runs in self.disturbed else 1)
            )

        return {name: lambda name=name: run(name) for name in ways}

    def tuner(self, folder, seconds: float = 100.0) -> Tuner:
        return Tuner(Records(host(), folder), host(), seconds, self.clock, self.runner)
