"""For tests of tuning: a product, and a machine with a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.llvm.gemm.cuts import cuts
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.tune.chosen_blocks import Tuner, Untried
from magmadnn.compiler.tune.file import Records
from magmadnn.compiler.tune.products import matrix_bytes

SPEED = 2e9  # products per second, of the machine in these tests


def part(m: int = 307, k: int = 521, n: int = 263) -> dict[str, int]:
    strides = {"lda": k, "ldb": n, "ldc": n}
    return {"row0": 0, "row1": m, "column0": 0, "column1": n, "k": k, **strides}


class Machine:
    """A clock, and runs that move it: each way takes `factor` times what the product takes by rule."""

    def __init__(self, factors: Mapping[str, float] | None = None, setting_up: float = 0.0) -> None:
        self.now, self.runs, self.setting_up = 100.0, 0, setting_up
        self.factors, self.disturbed = dict(factors or {}), set[int]()
        self.chosen: list[int] = []

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

    def tuner(self, folder, seconds: float = 100.0, share: float = 1.0) -> Tuner:
        return Tuner(Records(host(), folder), host(), seconds, share, 0.0, self.clock)

    def untried(self, gemm, values) -> Untried:
        """A product; what is chosen for it is in `chosen`."""
        names = {word: n for n, word in cuts(gemm, host(), values["row1"], values["k"]).items()}

        def prepare():
            runs = self.runner(gemm, values, names.values())
            return lambda word: runs[names[word]]()

        return Untried(gemm, values, matrix_bytes(gemm, values), prepare, self.chosen.append)

    def searched(self, tuner: Tuner, gemm, values) -> int:
        """What the tuner chooses for a product in a program that goes on for long."""
        untried = [self.untried(gemm, values)]
        while untried:
            tuner.go_on(untried)
            self.now += 1
        return tuner.cut(gemm, values)
