"""The planner: predicts how long each way to compute a product takes, and picks the shortest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from magmadnn.dmath.arrays.pulling import own_elements
from magmadnn.dmath.layouts.layout import Layout, replicated
from magmadnn.dmath.layouts.moves import traffic
from magmadnn.dmath.layouts.recipes import Rows
from magmadnn.dmath.products.cutting import FIRST, calls_of, own_bytes, terms_of
from magmadnn.dmath.products.plans import (
    ProductPlan,
    a_stays,
    b_stays,
    c_stays,
    grid,
    grids,
    orders,
    scattered,
)
from magmadnn.dmath.products.rates import Rates

_FIRST_CHUNK = 1 / 8  # of the operands, roughly
_PACE = 5.0  # copies that take less of the time of products are hidden by terms of own blocks
_LEAST_PACE = 3.5  # where copies take more, columns wait for them: slower than terms where measured
_CUT_SECONDS = 2e-4  # of products that pay to be cut by columns
_GAIN = 0.05  # of the time of a product, that columns of whole sums have to save
_SHORT_SUMS = 0.1  # of products on tensor cores, lost by short sums: 0 to 0.29 where measured
_TENSOR_FLOPS = 1e14  # a second: tensor cores; slower arithmetic loses 1 to 2 % by short sums
_SHORT = 2048  # sums for each worker below which the next figure is counted
_SHORT_SECONDS = 2e-4  # what more than two workers lost there: 0.09 to 0.21 ms where measured
_COPIED = 2e12  # bytes a second of copies within a GPU: H100, H200
_PASSED = 4e12  # bytes a second of products that read sums and write them
_OWN_COPIED = 1.9e12  # the same by a copy engine: H200
_HIDDEN = 1.2  # of what comes, products that hide it
_MOST_MIXED = 0.6  # share of terms from which on whole sums for the rest gain nothing
_MIXED_SECONDS = 2e-3  # of products that pay to be made in both ways, of 3 terms on tensor cores,
_LONG_SECONDS = 2e-2  # and of others: copies within a GPU disturb shorter ones
_GRIDS = 6  # of each number of workers, those that send least in theory, are looked at closely


@dataclass(frozen=True)
class Predicted:
    """A plan and what the planner expects of it.

    Attributes:
        plan: the way.
        seconds: in all.
        compute_seconds: of the worker that multiplies most.
        moved: elements that are sent, by all workers together.
        active: how many workers multiply.
    """

    plan: ProductPlan
    seconds: float
    compute_seconds: float
    moved: int
    active: int


def _send_seconds(source: Layout, target: Layout, itemsize: int, rates: Rates) -> tuple[float, int]:
    """Predicted time of a change of layout, and the elements it sends."""
    table = traffic(source, target)
    moved = int(table.sum())
    if not moved:
        return 0.0, 0
    most = max(table.sum(axis=0).max(), table.sum(axis=1).max())
    if rates.overlapped:  # copies that nobody waits for on the host
        return float(most * itemsize / rates.bytes_per_second), moved
    messages = max((table > 0).sum(axis=0).max(), (table > 0).sum(axis=1).max())
    return float(
        most * itemsize / rates.bytes_per_second + messages * rates.seconds_per_message
    ), moved


def predict(plan: ProductPlan, a: Layout, b: Layout, itemsize: int, rates: Rates) -> Predicted:
    """The time of a plan for operands that lie in layouts `a` and `b`."""
    workers = a.workers
    work = [plan.work(w) for w in range(workers)]
    active = sum(1 for w in work if w)
    rate = rates.flops_of(active, workers)
    compute = max(work, default=0) / rate + rates.seconds_per_step * max(
        len(plan.c.held[w]) for w in range(workers)
    )
    if plan.way == "fetch":
        times = [
            _send_seconds(a, plan.a, itemsize, rates),
            _send_seconds(b, plan.b, itemsize, rates),
            _send_seconds(plan.c, plan.target, _sums_size(plan.c, itemsize), rates),
        ]
        moved = sum(e for _, e in times)
        if rates.overlapped:  # the first chunk's operands are waited for
            fetching = times[0][0] + times[1][0]
            waiting = own_bytes(a, b, plan, itemsize, _sums_size(plan.c, itemsize)) / _COPIED
            if plan.pace:
                waiting += _first_chunk(plan, fetching, bool(times[1][0]))
            else:
                share = plan.mixed or 1.0
                waiting += share * _passes(plan.c, terms_of(a, b, plan), itemsize)
            shared = min(fetching, compute) * _waited(plan, a, b)
            seconds = max(fetching, compute) + shared + waiting + times[2][0]
            # the host hands over the next product while the GPU has this one
            seconds = max(seconds, _handing(rates, calls_of(a, b, plan)))
        else:
            seconds = sum(t for t, _ in times) + compute
        return Predicted(plan, seconds + _spread_thin(plan, a, b, rates), compute, moved, active)
    stays, moves, start = {
        "ring a": ((b, plan.b), a, plan.target),
        "ring b": ((a, plan.a), b, plan.target),
        "ring c": ((a, plan.a), plan.target, plan.target),
    }[plan.way]
    first, moved = _send_seconds(*stays, itemsize, rates)
    if plan.way == "ring c":
        second, more = _send_seconds(b, plan.b, itemsize, rates)
        first, moved = first + second, moved + more
    else:
        last, more = _send_seconds(plan.c, start, itemsize, rates)
        first, moved = first + last, moved + more
    blocks = max(len(moves.held[w]) for w in range(workers))
    size = max(itemsize, 4) if plan.way == "ring c" else itemsize  # sums of halves are wider
    shift = moves.most * size / rates.bytes_per_second + blocks * rates.seconds_per_message
    members = len(plan.target.active)
    stage = compute / members + rates.seconds_per_step
    turn = max(shift, stage)
    if rates.overlapped:  # copies take some of the memory's time from products
        turn += min(shift, stage) * _FIRST_CHUNK
    seconds = first + (members - 1) * turn + stage
    if rates.overlapped and plan.way != "ring c":
        cut = a.grid[1] if plan.way == "ring a" else b.grid[0]
        seconds += _passes(plan.target, cut, itemsize)
    # Each block is passed on, waited for, looked at as bytes, and multiplied by for each block of C.
    calls = members * blocks * (4 + max(len(plan.target.held[w]) for w in range(workers)))
    seconds = max(seconds, _handing(rates, calls)) + _spread_thin(plan, a, b, rates)
    total = sum(moves.elements(w) for w in range(workers)) * (members - 1)
    return Predicted(plan, seconds, compute, moved + total, active)


def _passes(c: Layout, terms: int, itemsize: int) -> float:
    """Seconds in which sums so far are read and written again, by each term but the first."""
    return max(terms - 1, 0) * 2 * c.most * max(itemsize, 4) / _PASSED


def _spread_thin(plan: ProductPlan, a: Layout, b: Layout, rates: Rates) -> float:
    """Seconds that more than two GPUs lose on tensor cores where the axis of sums is short for so many. Found
    on four H200s as a whole; what it is made of is not known. Alike for all ways of operands that lie on
    them, so that it decides on how many a matrix is put, not how it is multiplied there.
    """
    workers = len({*a.active, *b.active, *plan.c.active})
    if not rates.overlapped or workers <= 2 or rates.flops <= _TENSOR_FLOPS:
        return 0.0
    return _SHORT_SECONDS if a.shape[1] < _SHORT * workers else 0.0


def _first_chunk(plan: ProductPlan, copying: float, of_b: bool) -> float:
    """Seconds in which the first columns come, or rows of A: for a product by columns of whole sums nothing
    is multiplied before.
    """
    columns = plan.c.shape[1 if of_b else 0]
    return copying * min(1.0, FIRST / max(columns, 1))


def _handing(rates: Rates, calls: int) -> float:
    """Seconds of a host for a product that has been before."""
    called = rates.seconds_per_call * calls
    return min(called, rates.seconds_per_launch) if rates.seconds_per_launch else called


@lru_cache(maxsize=1024)
def _waited(plan: ProductPlan, a: Layout, b: Layout) -> float:
    """The share of copies that is not hidden behind products, or of products behind copies: all of it where
    a worker has nothing of what it multiplies.
    """
    for worker in range(a.workers):
        if plan.work(worker) and not (a.elements(worker) or b.elements(worker)):
            return 1.0
    return _FIRST_CHUNK


def _sums_size(c: Layout, itemsize: int) -> int:
    """Bytes of an element of C on its way: terms of sums of halves are float32."""
    return max(itemsize, 4) if c.partial else itemsize


def _whole(shape: tuple[int, int], worker: int, workers: int) -> Layout:
    return replicated(shape, workers, (worker,))


def _single(layout: Layout) -> bool:
    return not layout.partial and not layout.replicated


def _targets(a: Layout, b: Layout) -> Iterator[Layout]:
    """Layouts of C that follow from the operands': rows as A's if A is cut in rows only, columns as B's."""
    m, n = a.shape[0], b.shape[1]
    if a.grid[1] == 1:
        yield Layout((m, n), (a.cuts[0], (0, n)), a.holders, a.workers)
    if b.grid[0] == 1:
        yield Layout((m, n), ((0, m), b.cuts[1]), b.holders, a.workers)
    if a.grid[0] == b.grid[1] == 1 or (a.shape == (m, n) and a.grid != (1, 1)):
        if a.shape == (m, n):
            yield a


def _grid_plans(
    a: Layout, b: Layout, target: Layout | None, used: tuple[int, ...], split_k: bool
) -> Iterator[ProductPlan]:
    m, k, n = *a.shape, b.shape[1]
    found = [g for g in grids(len(used)) if g[0] <= m and g[1] <= max(k, 1) and g[2] <= n]
    found = [g for g in found if split_k or g[1] == 1]
    found.sort(key=lambda g: m * k / (g[0] * g[1]) + k * n / (g[1] * g[2]) + m * n / (g[0] * g[2]))
    for counts in found[:_GRIDS]:
        for order in orders(counts):
            la, lb, lc = grid(m, k, n, counts, order, a.workers, used)
            name = f"grid {counts[0]} x {counts[1]} x {counts[2]}"
            yield ProductPlan(name, la, lb, lc, target or scattered(lc))


def _rings(a: Layout, b: Layout, target: Layout) -> Iterator[ProductPlan]:
    """Rings over the workers of the result, where each has a share of what goes round and of what stays."""
    m, k, n = *a.shape, b.shape[1]
    workers, members = a.workers, target.active
    if len(members) < 2 or not _single(target):
        return
    stays = c_stays(k, target, target)
    if target.grid[1] == 1 and _single(b) and b.active == members:
        yield replace(stays, name="ring of B", way="ring b")
    if target.grid[0] == 1 and _single(a) and a.active == members:
        yield replace(stays, name="ring of A", way="ring a")
    if k >= workers == len(members):
        la, lb, lc = grid(m, k, n, (1, workers, 1), (0, 1, 2), workers)
        yield ProductPlan("ring of sums", la, lb, lc, target, "ring c")


def candidates(
    a: Layout,
    b: Layout,
    target: Layout | None,
    split_k: bool = True,
    order: tuple[int, ...] = (),
) -> list[ProductPlan]:
    """All ways that are looked at; `target` None lets each way leave C where it is.

    With `split_k` False every element of C is one worker's sum over all k.
    """
    (m, k), n, workers = a.shape, b.shape[1], a.workers
    found: list[ProductPlan] = []
    targets = [target] if target is not None else [t for t in _targets(a, b) if _single(t)]
    for one in targets:
        found.append(c_stays(k, one, one))
        found += _rings(a, b, one) if split_k else []
    if split_k:
        found += [a_stays(a, n, target)] if _single(a) else []
        found += [b_stays(m, b, target)] if _single(b) else []
    for used in _worker_counts(workers):
        numbers = tuple(range(used))
        for chosen in dict.fromkeys((numbers, tuple(sorted(order[:used] or numbers)))):
            found += _grid_plans(a, b, target, chosen, split_k)
    for worker in {0, int(np.argmax([a.elements(w) + b.elements(w) for w in range(workers)]))}:
        where = _whole((m, n), worker, workers)
        plan = c_stays(k, where, target or where)
        found.append(replace(plan, name=f"worker {worker} alone"))
    distinct: dict[ProductPlan, ProductPlan] = {}
    for plan in found:  # the same work by several names is the first one's
        distinct.setdefault(replace(plan, name=""), plan)
    return list(distinct.values())


def _worker_counts(workers: int) -> list[int]:
    """Numbers of workers that grids are tried for: all, and fewer by halves."""
    counts, used = [workers], 1
    while used < workers:
        counts.append(used)
        used *= 2
    return sorted(set(counts), reverse=True)


def paced(plan: ProductPlan, a: Layout, b: Layout, itemsize: int, rates: Rates) -> ProductPlan:
    """The plan, with its pace where C is better made of whole sums as its columns come than of terms.

    Each pass over C costs time, and a library is at its best with long sums. But a product of whole sums
    cannot begin before all of the axis has come, at least for some columns. So terms, of own blocks first,
    are better where copies take little of the time; and where products are too short to be cut. So that the
    new way does not lose, it has to save more than a twentieth of the time by this count. Where copies take
    more than some two sevenths of the time of products, columns wait for them: on four H200s products of
    8192 rows in TF32 and bfloat16 took 1.2 to 1.3 times as long so as by terms.
    """
    if not rates.overlapped or plan.way != "fetch" or not plan.whole:
        return plan
    sides = ((a, plan.a), (b, plan.b))
    coming = [traffic(lies, to).sum(axis=0).max() for lies, to in sides]
    if sum(bool(one) for one in coming) != 1 or min(plan.c.grid) > 1:
        return plan
    lies, to = sides[int(bool(coming[0]))]
    if any(own_elements(lies, to, worker) for worker in range(a.workers)):
        return plan  # one operand has to lie as it is multiplied, while the other one comes
    work = [plan.work(w) for w in range(a.workers)]
    flops = rates.flops_of(sum(1 for w in work if w), a.workers)
    computing = max(work) / flops
    copying = float(sum(coming)) * itemsize / rates.bytes_per_second
    if computing < _CUT_SECONDS or not _LEAST_PACE <= computing / copying <= _PACE:
        return plan
    saved = _passes(plan.c, terms_of(a, b, plan), itemsize)
    if flops > _TENSOR_FLOPS:
        saved += _SHORT_SUMS * computing
    if saved - _first_chunk(plan, copying, bool(coming[1])) < _GAIN * max(computing, copying):
        return plan
    return replace(plan, pace=round(computing / copying, 2))


def mixed(plan: ProductPlan, a: Layout, b: Layout, itemsize: int, rates: Rates) -> ProductPlan:
    """The plan, with the share of C's rows that are made of terms while blocks come, where it pays to make
    the others of whole sums.

    Whole sums are faster, but all of the axis has to lie in one piece, so that own blocks are copied too, and
    that has to be hidden by products as well. On four H200s products of 16384 rows in TF32 take 0.79 of the
    time so, in bfloat16 0.92; where there are two terms only, as on a grid, 1.02 to 1.03 on tensor cores, and
    0.99 in float32.
    """
    if not rates.overlapped or plan.way != "fetch" or not plan.whole or plan.pace:
        return plan
    terms, work = terms_of(a, b, plan), [plan.work(w) for w in range(a.workers)]
    active = sum(1 for w in work if w)
    if plan.c != plan.target or terms < 2 or active <= 2:
        return plan
    flops = rates.flops_of(active, a.workers)
    computing = max(work) / flops
    if computing < (_MIXED_SECONDS if terms > 2 and flops > _TENSOR_FLOPS else _LONG_SECONDS):
        return plan
    sides = [(lies, to, traffic(lies, to)) for lies, to in ((a, plan.a), (b, plan.b))]
    sides = [side for side in sides if side[2].any()]
    hidden = 0.0
    for worker in range(a.workers):
        coming = sum(int(table[:, worker].sum()) for _, _, table in sides)
        own = sum(own_elements(lies, to, worker) for lies, to, _ in sides)
        took = coming / rates.bytes_per_second + own / _OWN_COPIED
        hidden = max(hidden, took * itemsize)
    share = round(_HIDDEN * hidden / computing, 3)
    return replace(plan, mixed=share) if share <= _MOST_MIXED else plan


@lru_cache(maxsize=1024)
def ranked(
    a: Layout, b: Layout, target: Layout | None, itemsize: int, rates: Rates, split_k: bool = True
) -> tuple[Predicted, ...]:
    """The candidates, the one predicted to be fastest first; equal ones in a fixed order."""
    plans = [
        mixed(paced(plan, a, b, itemsize, rates), a, b, itemsize, rates)
        for plan in candidates(a, b, target, split_k, rates.order)
    ]
    found = [predict(plan, a, b, itemsize, rates) for plan in plans]
    return tuple(sorted(found, key=lambda one: (one.seconds, one.moved)))


@lru_cache(maxsize=256)
def auto_layout(shape: tuple[int, int], workers: int, itemsize: int, rates: Rates) -> Layout:
    """Rows over as many workers as make the product of such matrices fastest: what layout="auto" means for
    a matrix.

    More workers than pay are left out, so that a product of matrices that lie so is never predicted to be
    slower on more.
    """
    m, k = shape
    best: tuple[float, Layout] | None = None
    for used in sorted(_worker_counts(workers)):
        on = rates.first(used)
        layout, other = (Rows(on=on).layout(one, workers) for one in (shape, (k, m)))
        seconds = ranked(layout, other, None, itemsize, rates)[0].seconds
        if best is None or seconds < best[0]:
            best = seconds, layout
    assert best is not None
    return best[1]


def explained(
    predictions: tuple[Predicted, ...], itemsize: int, most: int = 8, order: tuple[int, ...] = ()
) -> str:
    """The candidates as a table, the chosen one first; and the order of the workers around a ring, if it is
    not that of their numbers.
    """
    lines = ["   predicted    computing        sent  workers  way"]
    for number, one in enumerate(predictions[:most]):
        mark = "->" if number == 0 else "  "
        sent = f"{one.moved * itemsize / 1e6:8.2f} MB"
        times = f"{one.seconds * 1e3:9.3f} ms {one.compute_seconds * 1e3:9.3f} ms"
        lines.append(f"{mark} {times} {sent} {one.active:8d}  {one.plan.name}")
    if len(predictions) > most:
        lines.append(f"   and {len(predictions) - most} more, slower ones")
    if order != tuple(sorted(order)):
        lines.append(f"   by links workers stand in the order {', '.join(map(str, order))}")
    return "\n".join(lines)
