"""Convolutions and pooling of spread arrays, data parallel: each worker has whole images and all filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Array, Team
from magmadnn.dmath.layouts.layout import Layout, even_cuts, replicated

WINDOWS = ("convolution", "max_pooling", "average_pooling")
_KEPT = 16  # programs on a GPU, each with the memory of its shapes


def by_images(layout: Layout) -> Layout:
    """Where images have to lie: as they do if none is cut, else dealt to all workers."""
    whole = all(count == 1 for count in layout.grid[1:])
    if whole and not layout.partial and not layout.replicated:
        return layout
    shape, workers = layout.shape, layout.workers
    cuts = (even_cuts(shape[0], workers), *((0, n) for n in shape[1:]))
    return Layout(shape, cuts, tuple((w,) for w in range(workers)), workers)


def of_windows(
    name: str,
    x: Parts,
    filters: Parts | None,
    places: list[int],
    dtype: np.dtype[Any],
    settings: Any,
) -> Parts:
    """`magmadnn.ops`' function of that name, of each worker's images.

    Args:
        name: one of `WINDOWS`.
        x: [n, *places, c].
        filters: [*size, c / groups, o], which go to all workers.
        places: axes of the result but the first.
        dtype: of the result.
        settings: of the function.

    Workers with a GPU compile it for the shape of their images, once, and run it there.
    """
    lies = by_images(x.layout)
    x = remap(x, lies, share=True)
    more: list[Array] = []
    if filters is not None:
        everywhere = replicated(filters.shape, filters.team.size)
        more = list(remap(filters, everywhere, share=True).blocks.values())
    compute = _on_the_cpu if x.team.xp is np else _on_a_gpu
    blocks = {n: compute(x.team, name, [block, *more], settings) for n, block in x.blocks.items()}
    shape = (x.shape[0], *places)
    cuts = (lies.cuts[0], *((0, n) for n in places))
    return Parts(x.team, Layout(shape, cuts, lies.holders, lies.workers), dtype, blocks)


def _on_the_cpu(team: Team, name: str, operands: list[Array], settings: dict[str, Any]) -> Array:
    from magmadnn import ops  # not needed by what only multiplies

    return np.asarray(getattr(ops, name)(*operands, **settings))


class _Compiled:
    """A function for given shapes as a program on a GPU, whose result stays there.

    Args:
        name: one of `WINDOWS`.
        operands: like those that it is run with.
        settings: of the function.
        device: number of the GPU.
    """

    def __init__(
        self, name: str, operands: list[Array], settings: dict[str, Any], device: int
    ) -> None:
        from magmadnn import ops
        from magmadnn.runtime.evaluate import Executable
        from magmadnn.tensor import Tensor, placeholder, variable

        given = [placeholder(f"x{i}", x.shape, x.dtype.name) for i, x in enumerate(operands)]
        made = getattr(ops, name)(*given, **settings)
        shape = tuple(int(n) for n in made.shape)
        self._result = Tensor(shape, None, made.dtype, "device", device=device)
        updates = [(variable("result", self._result).node, made.node)]
        self._inputs = [one.node for one in given]
        self._program = Executable([], updates, executor="native", device=f"cuda:{device}")
        self._device = device

    def run(self, team: Team, operands: list[Array]) -> Array:
        """The result, as an array of its own."""
        from magmadnn.backends.cuda import device_memory
        from magmadnn.memory.foreign import OnDevice

        xp, memory = team.xp, device_memory(self._device)
        packed = [xp.ascontiguousarray(x) for x in operands]
        feeds = {
            node: OnDevice(x.shape, x.dtype, int(x.data.ptr), self._device, x)
            for node, x in zip(self._inputs, packed, strict=True)
        }
        team.finish()  # what operands hold is written, by other workers too
        memory.wait()
        self._program.run(feeds)
        found = xp.empty(self._result.shape, self._result.dtype)
        memory.copy_on_device(
            int(found.data.ptr), self._result.memory.device_pointer(), found.nbytes
        )
        memory.wait()
        return found


def _on_a_gpu(team: Team, name: str, operands: list[Array], settings: dict[str, Any]) -> Array:
    key = (name, *((x.shape, x.dtype.name) for x in operands), repr(sorted(settings.items())))
    if key not in team.programs:
        while len(team.programs) >= _KEPT:
            team.programs.pop(next(iter(team.programs)))
        team.programs[key] = _Compiled(name, operands, settings, team.rank)
    return team.programs[key].run(team, operands)
