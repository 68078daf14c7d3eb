"""Kernels as machine code: compiled together, kept on disk, loaded once in a process."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from magmadnn.backends.cuda import Engine
from magmadnn.compiler.emit.cuda.module import OPTIONS, key_of, module_text, symbol
from magmadnn.compiler.emit.cuda.variant import Chip, Variant
from magmadnn.compiler.emit.llvm.cache import kernel_cache

_loaded: dict[tuple[Engine, Variant], object] = {}
_lock = threading.Lock()


def chip_of(engine: Engine) -> Chip:
    """What emitters need to know of a device."""
    return Chip(engine.capability, engine.processors, engine.shared_bytes)


def functions_of(engine: Engine, wanted: Iterable[Variant]) -> dict[Variant, object]:
    """The functions of kernels; those that are not loaded yet are compiled as one module.

    Raises:
        DeviceError: if they cannot be compiled, with the compiler's text.
    """
    variants = list(dict.fromkeys(wanted))
    with _lock:
        missing = [v for v in variants if (engine, v) not in _loaded]
        if missing:
            image = _image(engine, missing)
            names = [symbol(k) for k in range(len(missing))]
            for variant, function in zip(missing, engine.load(image, names), strict=True):
                _loaded[engine, variant] = function
        return {v: _loaded[engine, v] for v in variants}


def _image(engine: Engine, variants: list[Variant]) -> bytes:
    def compiled() -> bytes:
        return engine.compile(module_text(variants), OPTIONS)

    cache = kernel_cache()
    return cache.code(key_of(variants, *engine.versions), compiled) if cache else compiled()
