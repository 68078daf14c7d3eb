"""Kernels as machine code: compiled in a few modules by threads, kept on disk, loaded once in a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from magmadnn.backends.cuda.engine import Engine
from magmadnn.compiler.cuda.module import OPTIONS, key_of, module_text, symbol
from magmadnn.compiler.cuda.text.variant import Chip, Variant
from magmadnn.compiler.dump import dump_kernel
from magmadnn.compiler.llvm.object.cache import kernel_cache

_loaded: dict[tuple[Engine, Variant], object] = {}
_lock = threading.Lock()
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
            names = [symbol(k) for k in range(len(module))]
            for variant, function in zip(module, engine.load(image, names), strict=True):
                _loaded[engine, variant] = function
        return {v: _loaded[engine, v] for v in variants}


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
