"""Many models in one call beside as many single fits, and cross validation beside scikit-learn's networks.

python -m benchmarks.cpu.many_models [--models 64] [--threads 2] [--rows 1024] [--epochs 5,20,50] [--turns 5]
    [--without scikit-learn,jax,torch] [--curve 1,4,16,64,256]

Models are 13-64-64-64-2 with SGD, batches of 16, each with a seed of its own. Single fits run one after the
other on one thread. "from the start" is everything from the first `fit` of models that were just built, for
structures that were compiled before; "again" is a further call with the same models, which compiles nothing.
The two ways take turns; shown are the minimum and the median of the clock in ms, the ratio of both, and the
least processor time of all threads: where other programs share the cores, the clock tells more of them than
of us.

JAX's way is vmap of a jitted scan over an epoch of the same network, batches and rule, each model with an
order of its own that was drawn beforehand; it is compiled before it is timed, and has all cores that this
process may use (`taskset -c 0,1` for two). PyTorch's ways are vmap of grad (`torch.func`) over the
same steps, compiled, on as many threads; and one model after the other by autograd and its SGD, on one
thread.

With `--curve` only the time over the number of models is shown: microseconds of the clock for a step of a
model, the least of the turns, at the first number of epochs.

Cross validation is of 10 folds of a table of 300 rows and 13 columns, 200 epochs of Adam, batches of 16, one
hidden layer of 64; scikit-learn's early stopping is off, and its fits end after as many epochs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import magmadnn as md

FOLDS, SMALL, CV_EPOCHS = 10, 300, 200


Times = tuple[float, float]  # seconds by the clock, and of all threads of this process


def timed(run: Callable[[], object]) -> Times:
    """How long a run takes."""
    clock, own = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - own


def network(seed: int) -> md.Model:
    """13-64-64-64-2."""
    hidden = [md.layers.Dense(64, activation="relu") for _ in range(3)]
    return md.Model(
        [md.layers.Input((13,)), *hidden, md.layers.Dense(2)],
        loss="cross_entropy",
        optimizer=md.optim.SGD(0.01),
        metrics=["accuracy"],
        seed=seed,
    )


def row(name: str, first: list[Times], second: list[Times]) -> str:
    """A row of a table: minimum and median of two ways and their ratio, and processor times."""
    cells = [name]
    for rule in (min, statistics.median):
        a, b = (rule([t[0] for t in times]) for times in (first, second))
        cells += [f"{a * 1e3:.0f}", f"{b * 1e3:.0f}", f"{b / a:.3f}"]
    cells += [f"{min(t[1] for t in times) * 1e3:.0f}" for times in (first, second)]
    return f"| {' | '.join(cells)} |"


def curve(counts: list[int], threads: int, rows: int, epochs: int, turns: int) -> None:
    """Time for a step over the number of models: single fits, and many from the start and again."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 13)).astype(np.float32)
    y = (x[:, 0] + draw.standard_normal(rows) > 0).astype(np.int64)
    given: dict[str, Any] = {"batch_size": 16, "epochs": epochs, "verbose": False}
    md.fit_many([network(0)], x, y, **given)
    print("| models | one by one, again | together, from the start | together, again |")
    print("|---|---|---|---|")
    for count in counts:
        best = [float("inf")] * 3
        for _ in range(turns):
            built = [network(seed) for seed in range(count)]
            md.set_threads(threads)
            first = timed(lambda built=built: md.fit_many(built, x, y, **given))
            again = timed(lambda built=built: md.fit_many(built, x, y, **given))
            md.set_threads(1)
            single = timed(lambda built=built: [model.fit(x, y, **given) for model in built])
            each = (single[0], first[0], again[0])
            best = [min(pair) for pair in zip(best, each, strict=True)]
        steps = count * epochs * -(-rows // 16)
        cells = [f"{1e6 * seconds / steps:.2f}" for seconds in best]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


def many(models: int, threads: int, rows: int, epochs: int, turns: int) -> None:
    """Many models beside single fits."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 13)).astype(np.float32)
    y = (x[:, 0] + draw.standard_normal(rows) > 0).astype(np.int64)

    def single(built: list[md.Model]) -> None:
        md.set_threads(1)
        for model in built:
            model.fit(x, y, batch_size=16, epochs=epochs, verbose=False)

    def together(built: list[md.Model]) -> None:
        md.set_threads(threads)
        md.fit_many(built, x, y, batch_size=16, epochs=epochs, verbose=False)

    for way in (single, together):
        way([network(0)])
    times: dict[str, tuple[list[Times], list[Times]]] = {
        "from the start": ([], []), "again": ([], [])
    }  # fmt: skip
    for _ in range(turns):
        for k, way in enumerate((single, together)):
            built = [network(seed) for seed in range(models)]
            for label in times:
                times[label][k].append(timed(lambda way=way, built=built: way(built)))
    for label, (first, second) in times.items():
        print(row(f"{models} models, {rows} rows, {epochs} epochs, {label}", first, second))


def beside_jax(models: int, threads: int, rows: int, epochs: int, turns: int) -> None:
    """Many models beside JAX's vmap of a scan, in turns; neither compiles."""
    import jax
    import jax.numpy as jnp

    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 13)).astype(np.float32)
    y = (x[:, 0] + draw.standard_normal(rows) > 0).astype(np.int64)
    steps, widths = rows // 16, (13, 64, 64, 64, 2)
    inputs, targets = jnp.asarray(x), jnp.asarray(y)

    def initial(key: Any) -> Any:
        keys = jax.random.split(key, 4)
        pairs = zip(widths[:-1], widths[1:], keys, strict=True)
        return [(jax.random.normal(k, (a, b)) / np.sqrt(a), jnp.zeros(b)) for a, b, k in pairs]

    def loss(parameters: Any, rows_of: Any, classes: Any) -> Any:
        values = rows_of
        for w, b in parameters[:-1]:
            values = jax.nn.relu(values @ w + b)
        w, b = parameters[-1]
        log = jax.nn.log_softmax(values @ w + b)
        return -jnp.mean(jnp.take_along_axis(log, classes[:, None], axis=1))

    def step(parameters: Any, order: Any) -> tuple[Any, Any]:
        value, slopes = jax.value_and_grad(loss)(parameters, inputs[order], targets[order])
        return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, slopes), value

    def epoch(parameters: Any, order: Any) -> Any:
        return jax.lax.scan(step, parameters, order[: steps * 16].reshape(steps, 16))

    run: Callable[..., Any] = jax.jit(jax.vmap(epoch))
    keys = jax.random.split(jax.random.key(0), models)
    orders = jax.vmap(lambda k: jax.random.permutation(k, rows))(keys)
    parameters = jax.block_until_ready(jax.vmap(initial)(keys))

    def theirs() -> None:
        values = parameters
        for _ in range(epochs):
            values, _ = run(values, orders)
        jax.block_until_ready(values)

    md.set_threads(threads)
    built = [network(seed) for seed in range(models)]

    def ours() -> None:
        md.fit_many(built, x, y, batch_size=16, epochs=epochs, verbose=False)

    times: tuple[list[Times], list[Times]] = ([], [])
    for way in (theirs, ours):
        way()
    for _ in range(turns):
        for held, way in zip(times, (theirs, ours), strict=True):
            held.append(timed(way))
    print(
        row(f"{models} models, {rows} rows, {epochs} epochs, JAX's vmap and magmadnn again", *times)
    )


def beside_torch(models: int, threads: int, rows: int, epochs: int, turns: int) -> None:
    """Many models beside PyTorch's vmap of a compiled step, and its models one by one, in turns."""
    import torch
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap

    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 13)).astype(np.float32)
    y = (x[:, 0] + draw.standard_normal(rows) > 0).astype(np.int64)
    steps = rows // 16
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    def perceptron() -> Any:
        layer, relu = torch.nn.Linear, torch.nn.ReLU
        return torch.nn.Sequential(
            layer(13, 64), relu(), layer(64, 64), relu(), layer(64, 64), relu(), layer(64, 2)
        )

    networks = [perceptron() for _ in range(models)]
    stacked, _ = stack_module_state(networks)
    parameters = {name: value.detach() for name, value in stacked.items()}
    orders = torch.stack([torch.randperm(rows) for _ in range(models)])
    orders = orders[:, : steps * 16].reshape(models, steps, 16)

    def loss(own: Any, rows_of: Any, classes: Any) -> Any:
        values = functional_call(networks[0], own, (rows_of,))
        return torch.nn.functional.cross_entropy(values, classes)

    @torch.compile
    def step(own: Any, order: Any) -> Any:
        slopes, values = vmap(grad_and_value(loss))(own, inputs[order], targets[order])
        return {name: value - 0.01 * slopes[name] for name, value in own.items()}, values

    def theirs() -> None:
        torch.set_num_threads(threads)
        own = parameters
        for _ in range(epochs):
            for k in range(steps):
                own, _ = step(own, orders[:, k])

    def one_by_one() -> None:
        torch.set_num_threads(1)
        for number, net in enumerate(networks):
            rule = torch.optim.SGD(net.parameters(), 0.01)
            for _ in range(epochs):
                for order in orders[number]:
                    rule.zero_grad()
                    torch.nn.functional.cross_entropy(net(inputs[order]), targets[order]).backward()
                    rule.step()

    md.set_threads(threads)
    built = [network(seed) for seed in range(models)]

    def ours() -> None:
        md.fit_many(built, x, y, batch_size=16, epochs=epochs, verbose=False)

    ways = {"torch.func": theirs, "PyTorch one by one": one_by_one}
    for way in (theirs, ours):
        way()
    times: dict[str, list[Times]] = {name: [] for name in (*ways, "ours")}
    for turn in range(turns):
        for name, way in {**ways, "ours": ours}.items():
            if name == "PyTorch one by one" and turn:
                continue  # takes as long as all the others
            times[name].append(timed(way))
    for name in ways:
        shown = f"{models} models, {rows} rows, {epochs} epochs, {name} and magmadnn again"
        print(row(shown, times[name], times["ours"]))


def cross_validation(threads: int, turns: int) -> None:
    """Ten folds, by magmadnn and by scikit-learn."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    draw = np.random.default_rng(1)
    x = draw.standard_normal((SMALL, 13))
    y = (x[:, 0] * x[:, 1] + x[:, 2] + draw.standard_normal(SMALL) > 0).astype(np.int64)

    def build(seed: int) -> md.Model:
        return md.Model(
            [md.layers.Input((13,)), md.layers.Dense(64, activation="relu"), md.layers.Dense(2)],
            loss="cross_entropy", optimizer=md.optim.Adam(1e-3), metrics=["accuracy"],
            preparation=md.data.Standardize(), seed=seed,
        )  # fmt: skip

    scores: dict[str, float] = {}

    def ours() -> None:
        md.set_threads(threads)
        found = md.cross_validate(
            build, x, y, folds=FOLDS, batch_size=16, epochs=CV_EPOCHS, verbose=False
        )
        scores["magmadnn"] = found.mean["accuracy"]

    def theirs() -> None:
        net = MLPClassifier(
            (64,), batch_size=16, max_iter=CV_EPOCHS, n_iter_no_change=CV_EPOCHS, random_state=0
        )
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = cross_val_score(make_pipeline(StandardScaler(), net), x, y, cv=folds)
        scores["scikit-learn"] = float(found.mean())

    ours()
    times: tuple[list[Times], list[Times]] = ([], [])
    for _ in range(turns):
        for held, way in zip(times, (theirs, ours), strict=True):
            held.append(timed(way))
    print(row(f"cross validation, scikit-learn and magmadnn on {threads}", *times))
    print("mean accuracy:", ", ".join(f"{k} {v:.3f}" for k, v in scores.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Many models in one call.")
    parser.add_argument("--models", type=int, default=64, help="how many")
    parser.add_argument("--threads", type=int, default=2, help="of fit_many")
    parser.add_argument("--rows", type=int, default=1024, help="of the data set")
    parser.add_argument("--epochs", default="5,20,50", help="numbers of epochs")
    parser.add_argument("--turns", type=int, default=5, help="of each way")
    parser.add_argument(
        "--without", default="", help="scikit-learn, jax or torch, where it is not installed"
    )
    parser.add_argument("--curve", default="", help="only time over these numbers of models")
    given = parser.parse_args()
    print(f"load at the start: {os.getloadavg()[0]:.2f}; fit_many on {given.threads} threads")
    if given.curve:
        epochs = int(given.epochs.split(",")[0])
        counts = [int(number) for number in given.curve.split(",")]
        curve(counts, given.threads, given.rows, epochs, given.turns)
        return
    names = ("one by one", "together", "ratio")
    heads = [
        "",
        *names,
        *(f"median: {name}" for name in names),
        "processor: one by one",
        "together",
    ]
    print(f"| {' | '.join(heads)} |")
    print("|" + "---|" * len(heads))
    for epochs in map(int, given.epochs.split(",")):
        many(given.models, given.threads, given.rows, epochs, given.turns)
        if "jax" not in given.without:
            beside_jax(given.models, given.threads, given.rows, epochs, given.turns)
        if "torch" not in given.without:
            beside_torch(given.models, given.threads, given.rows, epochs, given.turns)
    if "scikit-learn" not in given.without:
        cross_validation(given.threads, given.turns)
    print(f"load at the end: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
