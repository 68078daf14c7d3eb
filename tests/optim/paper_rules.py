"""The papers' update rules in float64 NumPy, written out one by one: the truth for the tests.

Each rule takes the parameters, a function that gives their gradients at a step, and settings, and gives
the parameters after each step. Nothing here is shared with magmadnn. A learning rate is a function of the
number of steps done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Weights = list[Vector]
Gradients = Callable[[Weights, int], Weights]
Rule = Callable[..., Iterator[Weights]]


def sgd(
    ws: Weights, gradients: Gradients, steps: int, *, rate: Any, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0,
) -> Iterator[Weights]:  # fmt: skip
    """Robbins, Monro (1951); Polyak (1964); Sutskever et al. (2013), eq. (1)-(4).

    Nesterov's method looks ahead: the gradient is taken at w + mu * u, where u is the last move. What an
    implementation keeps is the point looked at, so here both are followed. That needs a constant rate.
    """
    ws = [w.copy() for w in ws]
    moves = [np.zeros_like(w) for w in ws]
    for t in range(steps):
        if nesterov:
            ahead = [w + momentum * u for w, u in zip(ws, moves, strict=True)]
            gs = gradients(ahead, t)
            at = ahead
        else:
            gs, at = gradients(ws, t), ws
        for i, g in enumerate(gs):
            moves[i] = momentum * moves[i] * (rate(t) / rate(max(t - 1, 0))) - rate(t) * (
                g + weight_decay * at[i]
            )
            ws[i] = ws[i] + moves[i]
        yield [w + momentum * u if nesterov else w for w, u in zip(ws, moves, strict=True)]


def adagrad(
    ws: Weights, gradients: Gradients, steps: int, *, rate: Any, eps: float = 1e-10,
    weight_decay: float = 0.0,
) -> Iterator[Weights]:  # fmt: skip
    """Duchi, Hazan, Singer (2011), figure 1: H = delta + s, s_i = norm(g_1..t,i), x = x - eta * g / H."""
    ws, history = [w.copy() for w in ws], []
    for t in range(steps):
        gs = [g + weight_decay * w for g, w in zip(gradients(ws, t), ws, strict=True)]
        history.append(gs)
        for i, g in enumerate(gs):
            length = np.linalg.norm(np.stack([past[i] for past in history]), axis=0)
            ws[i] = ws[i] - rate(t) * g / (eps + length)
        yield list(ws)


def rmsprop(
    ws: Weights, gradients: Gradients, steps: int, *, rate: Any, decay: float = 0.9,
    momentum: float = 0.0, eps: float = 1e-8, weight_decay: float = 0.0,
) -> Iterator[Weights]:  # fmt: skip
    """Tieleman, Hinton (2012), lecture 6e, slide 29; the mean of squares as a weighted sum of them all."""
    ws, squares = [w.copy() for w in ws], []
    velocity = [np.zeros_like(w) for w in ws]
    for t in range(steps):
        gs = [g + weight_decay * w for g, w in zip(gradients(ws, t), ws, strict=True)]
        squares.append([g**2 for g in gs])
        for i, g in enumerate(gs):
            mean = sum((1 - decay) * decay ** (t - k) * s[i] for k, s in enumerate(squares))
            velocity[i] = momentum * velocity[i] + g / (np.sqrt(mean) + eps)
            ws[i] = ws[i] - rate(t) * velocity[i]
        yield list(ws)


def adam_direction(
    gs: Weights, m: Weights, v: Weights, t: int, beta1: float, beta2: float, eps: float
) -> Weights:
    """Kingma, Ba (2015), algorithm 1, in the order of its lines; t from 1. Changes m and v."""
    found = []
    for i, g in enumerate(gs):
        m[i] = beta1 * m[i] + (1 - beta1) * g
        v[i] = beta2 * v[i] + (1 - beta2) * g**2
        m_hat, v_hat = m[i] / (1 - beta1**t), v[i] / (1 - beta2**t)
        found.append(m_hat / (np.sqrt(v_hat) + eps))
    return found


def adam(
    ws: Weights, gradients: Gradients, steps: int, *, rate: Any, beta1: float = 0.9,
    beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0,
) -> Iterator[Weights]:  # fmt: skip
    """Kingma, Ba (2015), algorithm 1; weight decay in the gradient."""
    ws = [w.copy() for w in ws]
    m, v = [np.zeros_like(w) for w in ws], [np.zeros_like(w) for w in ws]
    for t in range(steps):
        gs = [g + weight_decay * w for g, w in zip(gradients(ws, t), ws, strict=True)]
        for i, d in enumerate(adam_direction(gs, m, v, t + 1, beta1, beta2, eps)):
            ws[i] = ws[i] - rate(t) * d
        yield list(ws)


def adamw(
    ws: Weights, gradients: Gradients, steps: int, *, rate: Any, beta1: float = 0.9,
    beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01,
) -> Iterator[Weights]:  # fmt: skip
    """Loshchilov, Hutter (2019), algorithm 2: line 12 with alpha = 1 and eta = rate."""
    ws = [w.copy() for w in ws]
    m, v = [np.zeros_like(w) for w in ws], [np.zeros_like(w) for w in ws]
    for t in range(steps):
        gs = gradients(ws, t)
        for i, d in enumerate(adam_direction(gs, m, v, t + 1, beta1, beta2, eps)):
            ws[i] = ws[i] * (1 - rate(t) * weight_decay) - rate(t) * d
        yield list(ws)


def lars(
    ws: Weights, gradients: Gradients, steps: int, *, rate: Any, momentum: float = 0.9,
    weight_decay: float = 0.0005, trust_coefficient: float = 0.001,
) -> Iterator[Weights]:  # fmt: skip
    """You, Gitman, Ginsburg (2017), algorithm 1, line by line."""
    ws, v = [w.copy() for w in ws], [np.zeros_like(w) for w in ws]
    for t in range(steps):
        for i, g in enumerate(gradients(list(ws), t)):
            of_w, of_g = np.sqrt((ws[i] ** 2).sum()), np.sqrt((g**2).sum())
            local = trust_coefficient * of_w / (of_g + weight_decay * of_w)
            if of_w == 0 or of_g == 0:
                local = 1.0
            v[i] = momentum * v[i] + rate(t) * local * (g + weight_decay * ws[i])
            ws[i] = ws[i] - v[i]
        yield list(ws)


def lamb(
    ws: Weights, gradients: Gradients, steps: int, *, rate: Any, beta1: float = 0.9,
    beta2: float = 0.999, eps: float = 1e-6, weight_decay: float = 0.01,
) -> Iterator[Weights]:  # fmt: skip
    """You et al. (2020), algorithm 2, with phi(x) = x."""
    ws = [w.copy() for w in ws]
    m, v = [np.zeros_like(w) for w in ws], [np.zeros_like(w) for w in ws]
    for t in range(steps):
        gs = gradients(list(ws), t)
        for i, r in enumerate(adam_direction(gs, m, v, t + 1, beta1, beta2, eps)):
            u = r + weight_decay * ws[i]
            of_w, of_u = np.sqrt((ws[i] ** 2).sum()), np.sqrt((u**2).sum())
            ratio = of_w / of_u if of_w > 0 and of_u > 0 else 1.0
            ws[i] = ws[i] - rate(t) * ratio * u
        yield list(ws)


RULES: dict[str, Rule] = {
    "SGD": sgd, "AdaGrad": adagrad, "RMSProp": rmsprop, "Adam": adam, "AdamW": adamw,
    "LARS": lars, "LAMB": lamb,
}  # fmt: skip
