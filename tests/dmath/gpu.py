"""A stand-in for CuPy: arrays of NumPy's that come from a pool, and copies to and from them, counted.

What CuPy does without being asked, such as `float(x)` or an operand of NumPy's, is refused here: bytes that
pass that way could not be counted.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.dmath import devices
from tests.dmath import shared_memory

PAGE = 512  # bytes of which blocks of the pool are multiples
_HOOKS = threading.local()


def _hooks() -> dict[str, Any]:
    if not hasattr(_HOOKS, "entered"):
        _HOOKS.entered = {}
    entered: dict[str, Any] = _HOOKS.entered
    return entered


class MemoryHook:
    """CuPy's, of which the pool of this thread tells."""

    name = "MemoryHook"

    def __enter__(self) -> MemoryHook:
        if self.name in _hooks():
            raise KeyError(self.name)
        _hooks()[self.name] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _hooks()[self.name]

    def alloc_postprocess(self, **told: Any) -> None:
        pass


class Pool:
    """Blocks that were given back serve again."""

    def __init__(self) -> None:
        self.asked = 0  # of the driver
        self.to_device = self.to_host = 0  # bytes
        self._free = Counter[int]()

    def take(self, array: Any) -> None:
        size = -(-array.nbytes // PAGE) * PAGE
        if not size:
            return
        weakref.finalize(array, self._give, size)
        if self._free[size]:
            self._free[size] -= 1
            return
        self.asked += 1
        for hook in _hooks().values():
            hook.alloc_postprocess(device_id=0, mem_size=size, mem_ptr=1)

    def _give(self, size: int) -> None:
        self._free[size] += 1


POOL = Pool()


def _plain(x: Any) -> Any:
    if isinstance(x, Ndarray):
        return x.view(np.ndarray)
    if isinstance(x, (tuple, list)):
        return type(x)(_plain(one) for one in x)
    assert not (isinstance(x, np.ndarray) and x.ndim), "an array of NumPy's among CuPy's"
    return x


def _device(x: Any, operands: tuple[Any, ...] = ()) -> Any:
    """A result as an array on the device: a view where it is one of an operand."""
    if isinstance(x, (tuple, list)):
        return type(x)(_device(one, operands) for one in x)
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    if any(isinstance(one, np.ndarray) and np.may_share_memory(x, one) for one in operands):
        return x.view(Ndarray)
    made = Ndarray(np.shape(x), x.dtype)
    made.view(np.ndarray)[...] = x
    return made


class Ndarray(shared_memory.Ndarray):
    """An array on the device."""

    def __array_finalize__(self, source: Any) -> None:
        if self.flags.owndata:
            POOL.take(self)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any
    ) -> Any:
        given = {} if out is None else {"out": tuple(_plain(one) for one in out)}
        made = getattr(ufunc, method)(*map(_plain, inputs), **given, **more)
        return _device(made) if out is None else out[0]

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if isinstance(found, Ndarray) else _device(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, _plain(value))

    def get(self, stream: Any = None) -> np.ndarray:
        POOL.to_host += self.nbytes
        return np.array(self.view(np.ndarray))

    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("elements go to the host uncounted")

    __float__ = __int__ = __bool__ = __index__ = __iter__ = tolist = item = _refuse


def _asarray(x: Any, dtype: Any = None) -> Any:
    if isinstance(x, Ndarray):
        return x if dtype is None else x.astype(dtype, copy=False)
    if isinstance(x, np.ndarray):
        POOL.to_device += x.nbytes
    return _device(np.asarray(x, dtype))


class _Functions:
    """A module of NumPy's, for arrays on the device."""

    def __init__(self, module: Any, **others: Any) -> None:
        self._module = module
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, type) or not callable(found):
            return found

        def called(*operands: Any, **settings: Any) -> Any:
            plain = tuple(_plain(one) for one in operands)
            given = {k: _plain(v) for k, v in settings.items()}
            return _device(found(*plain, **given), plain)

        return called


def library() -> Any:
    """What stands in for the module `cupy`."""
    cuda = SimpleNamespace(
        cublas=shared_memory.Cublas(),
        device=SimpleNamespace(get_cublas_handle=lambda: 0),
        Device=lambda number: SimpleNamespace(use=lambda: None),
        MemoryHook=MemoryHook,
        get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
    )
    plain: Callable[[Any], Any] = np.ascontiguousarray
    return _Functions(
        np,
        cuda=cuda,
        asarray=_asarray,
        linalg=_Functions(np.linalg),
        fft=_Functions(np.fft),
        ascontiguousarray=lambda x: x if x.flags.c_contiguous else _device(plain(_plain(x))),
    )


def on_stand_ins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `device="cuda"` mean the stand-in, also for simulated workers; the library."""
    cupy = library()
    monkeypatch.setattr(devices, "device_memory", lambda number: None)
    monkeypatch.setattr(devices, "device_count", lambda: 64)
    monkeypatch.setattr(devices, "array_library", lambda: cupy)
    monkeypatch.setattr("magmadnn.comm.gpu.NcclCommunicator", lambda comm: comm)
    monkeypatch.setattr("magmadnn.comm.gpu.PeerCopies.among", lambda group: None)
    monkeypatch.setattr(
        "magmadnn.comm.gpu.read_links", lambda group: [[0] * group.size] * group.size
    )
    monkeypatch.setattr(sys.modules[__name__], "POOL", Pool())
    return cupy
