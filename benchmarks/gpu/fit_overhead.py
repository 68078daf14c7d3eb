"""What a call of `fit` costs beside the graphs of its steps: an epoch of MNIST, by where arrays come from."""

from __future__ import annotations

from benchmarks.harness.cases import OURS, Case, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.networks import PAPERS, stored

BARE = "its graphs alone"
ARRAYS = ("fixed", "given before", "on the device", "new")


def claim(settings: Settings) -> Claim:
    rows = 5_000 if settings.quick else 60_000
    arguments = {
        "file": stored(PAPERS, rows), "activation": PAPERS.activation, "batch": PAPERS.batch,
        "precision": "tf32",
    }  # fmt: skip
    bare = Entry(BARE, "benchmarks.contenders.fits:BareGraphs", arguments)
    return Claim(
        "`fit` beside its graphs, papers' network on MNIST, tf32",
        [
            Case(
                f"arrays {arrays}",
                (
                    Entry(OURS, "benchmarks.contenders.fits:Fit", {**arguments, "arrays": arrays}),
                    bare,
                ),
                (Goal("ratio", 1.05, (BARE,)),),
                steps=rows // PAPERS.batch,
            )
            for arrays in ARRAYS
        ],
        shared=True,
    )


if __name__ == "__main__":
    main({"fit_overhead": claim}, device="cuda")
