"""Kernels as machine code: compiled in a few modules by threads, kept on disk, loaded once in a process.

A step of a small network is one kernel, made for its sizes; until it is compiled, its parts run as
launches of kernels whose sizes are arguments (`Specialised`).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from magmadnn.backends.cuda.engine import Engine
from magmadnn.compiler.cuda.module import OPTIONS, key_of, module_text, symbol
from magmadnn.compiler.cuda.text.variant import Chip, Variant
from magmadnn.compiler.dump import dump_kernel
from magmadnn.compiler.llvm.object.cache import kernel_cache

ANY_SIZE_STEPS = 1_000  # that run by kernels for any size before one for given sizes is compiled

_loaded: dict[tuple[Engine, Variant], object] = {}
_lock = threading.Lock()
_specialised: dict[tuple[Engine, tuple[Variant, ...]], Specialised] = {}
_MODULE = 2_000  # characters
_MODULES = 16  # at most: each reads the texts that all need, some 0.06 s


def chip_of(engine: Engine) -> Chip:
    """What emitters need to know of a device."""
    return Chip(engine.capability, engine.processors, engine.shared_bytes)


def functions_of(engine: Engine, wanted: Iterable[Variant]) -> dict[Variant, object]:
    """The functions of kernels; those that are not loaded yet are compiled.

    Raises:
        DeviceError: if they cannot be compiled, with the compiler's text.
    """
    variants = list(dict.fromkeys(wanted))
    with _lock:
        missing = [v for v in variants if (engine, v) not in _loaded]
        modules = _modules(missing)
        for module in modules:
            dump_kernel("module.cu", partial(module_text, module))
        for module, image in zip(modules, _images(engine, modules), strict=True):
            _load(engine, module, image)
        return {v: _loaded[engine, v] for v in variants}


class Specialised:
    """Kernels for given sizes, in whose place kernels for any size run until they are compiled."""

    def __init__(self, engine: Engine, module: tuple[Variant, ...]) -> None:
        self._engine, self._module = engine, list(module)
        self._steps: int | None = None  # that ran without them; None: nobody asked
        self._coming: Future[bytes] | None = None
        self._is_loaded = False

    def is_there(self, steps: int) -> bool:
        """Whether they can be launched now; if not, `steps` more steps run without them.

        A thread compiles them once more than `ANY_SIZE_STEPS` have; what is kept on disk is loaded at once.

        Raises:
            DeviceError: if they could not be compiled, with the compiler's text.
        """
        with _lock:
            if not self._is_loaded and (image := self._image(steps)) is not None:
                _load(self._engine, self._module, image)
                self._is_loaded = True
            return self._is_loaded

    def _image(self, steps: int) -> bytes | None:
        """Their code, if it is there."""
        if self._coming is not None:
            return self._coming.result() if self._coming.done() else None
        if not ANY_SIZE_STEPS:
            return _image(self._engine, self._module)
        if self._steps is None:
            self._steps, cache = 0, kernel_cache()
            if cache and (found := cache.find(key_of(self._module, *self._engine.versions))):
                return found
        self._steps += steps
        if self._steps > ANY_SIZE_STEPS:
            self._coming = _compiler().submit(_image, self._engine, self._module)
        return None


def specialised(engine: Engine, wanted: Iterable[Variant]) -> Specialised:
    """These kernels for given sizes: one object for all that want them, as to look them up takes time."""
    key = engine, tuple(wanted)
    with _lock:
        return _specialised.setdefault(key, Specialised(*key))


@functools.cache
def _compiler() -> ThreadPoolExecutor:
    """The thread that compiles while steps run."""
    return ThreadPoolExecutor(1, "magmadnn compiler")


def _load(engine: Engine, module: list[Variant], image: bytes) -> None:
    names = [symbol(k) for k in range(len(module))]
    for variant, function in zip(module, engine.load(image, names), strict=True):
        _loaded[engine, variant] = function


def _modules(variants: list[Variant]) -> list[list[Variant]]:
    """Kernels that are compiled together: short ones in one module, several of equal length for more."""
    lengths = {variant: len(variant.text("kernel")) for variant in variants}
    count = min(max(sum(lengths.values()) // _MODULE, 1), _MODULES)
    modules: list[list[Variant]] = [[] for _ in range(count)]
    for variant in sorted(variants, key=lambda v: -lengths[v]):
        min(modules, key=lambda module: sum(lengths[v] for v in module)).append(variant)
    return [module for module in modules if module]


def _images(engine: Engine, modules: list[list[Variant]]) -> list[bytes]:
    """The code of modules; the compiler runs in as many threads as there are processors for."""
    if len(modules) < 2:
        return [_image(engine, module) for module in modules]
    with ThreadPoolExecutor(min(len(modules), os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda module: _image(engine, module), modules))


def _image(engine: Engine, variants: list[Variant]) -> bytes:
    def compiled() -> bytes:
        return engine.compile(module_text(variants), OPTIONS)

    cache = kernel_cache()
    return cache.code(key_of(variants, *engine.versions), compiled) if cache else compiled()
