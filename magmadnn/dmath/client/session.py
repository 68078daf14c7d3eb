"""A session: posts operations to workers and keeps what the client has to know, which is shapes, dtypes and
numbers.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from magmadnn.calls import missing_name
from magmadnn.dmath.arrays import making
from magmadnn.dmath.arrays.team import Array
from magmadnn.dmath.client.accounting import Accounting
from magmadnn.dmath.client.checking import NUMBERS, goes_into, promoted
from magmadnn.dmath.client.creating import Creating
from magmadnn.dmath.client.engines import Answer, Engine
from magmadnn.dmath.client.explaining import Foretold, foretold, stages
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.functions import elementwise, reducing
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import SMALL_BYTES, LayoutLike, resolve
from magmadnn.dmath.products.arithmetic import arithmetic_of, kind_of, wire_name
from magmadnn.dmath.products.choosing import auto_layout
from magmadnn.dmath.products.multiplying import product_shape
from magmadnn.dmath.products.rates import Rates
from magmadnn.dmath.worker import Record
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, error_like, quoted
from magmadnn.memory.dtypes import as_dtype

_PACKAGE = str(Path(__file__).resolve().parents[2])
_MOST_LAYOUTS = 1024  # that workers know by number; those used longest ago go
_RATES_FROM = 1 << 20  # bytes of a matrix from which its automatic layout has rates measured


def user_line() -> str:
    """File and line of the user's code that is being carried out."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Explaining(threading.local):
    """What `explain` has found so far, in the thread that called it; None outside of it."""

    found: list[Foretold | str] | None = None


class Session(Creating, Accounting):
    """Arrays on workers, and functions of them. Several threads may use it: each operation is posted whole.

    Args:
        engine: how records reach the workers.
        device: "cpu" or "cuda".
        deterministic: "layout": products and sums have the same bits for all layouts and numbers of workers.
    """

    def __init__(
        self, engine: Engine, device: str = "cpu", deterministic: str | None = None
    ) -> None:
        if deterministic not in (None, "layout"):
            raise ArgumentError(
                f'deterministic: expected "layout" or None, got {quoted(deterministic)}'
            )
        self._engine: Engine | None = engine
        self.size = engine.size
        self.device = device
        if device not in ("cpu", "cuda"):
            raise ArgumentError(f'device: expected "cpu" or "cuda", got {quoted(device)}')
        self._fixed = deterministic == "layout"
        self._posting = threading.RLock()  # of what records need, until they are posted
        self._numbers, self._layout_numbers = count(), count()
        self._free: deque[int] = deque()  # which __del__ adds to, in any thread at any time
        self._layouts: dict[Layout, int] = {}  # used last: last
        self._told: list[tuple[int, Any]] = []
        self._untold: list[int] = []
        self._client_bytes = 0
        self._posted = 0
        self._explaining = _Explaining()
        self._lies: dict[int, Layout] = {}  # layouts of what explain has not made
        if device != "cpu":
            self._ask("use", device=device)
        self._rates: dict[str, Rates] = {}

    functions: ClassVar[
        Mapping[str, Callable[..., Any]]
    ] = {}  # those of `md.dmath`, which puts them here

    def __getattr__(self, name: str) -> Any:
        """Functions of `md.dmath`, which are the same everywhere."""
        if name in self.functions:
            return self.functions[name]
        raise missing_name("session", ["md.dmath.Session"], name, lambda: self.__dir__())

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    # --- records ------------------------------------------------------------------------------

    def _open(self) -> Engine:
        if self._engine is None:
            raise ArgumentError(
                "workers: they are closed: use arrays inside `with md.workers(...)`, or start others"
            )
        self._engine.check()  # before the lock, which another thread may have had in a fork
        return self._engine

    @property
    def _foretold(self) -> list[Foretold | str] | None:
        return self._explaining.found

    def close(self, wait: bool = True) -> None:
        """Drop all arrays; every use of them is refused from now on.

        Args:
            wait: for operations that are under way.
        """
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close(wait)

    def _drop(self, number: int) -> None:
        self._free.append(number)

    def _layout_number(self, layout: Layout) -> int:
        """The number under which workers know a layout, until others have been used so often."""
        number = self._layouts.pop(layout, None)
        if number is None:
            number = next(self._layout_numbers)
            self._told.append((number, layout.record()))
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._untold.append(self._layouts.pop(next(iter(self._layouts))))
        self._layouts[layout] = number
        return number

    def _record(self, op: str, operands: Sequence[Any], settings: dict[str, Any]) -> Record:
        record: Record = {"op": op, "line": user_line()}
        if operands:
            record["in"] = [self._operand(op, x) for x in operands]
        if settings:
            record["set"] = settings
        if self._free:
            record["free"] = [self._free.popleft() for _ in range(len(self._free))]
        if self._told:
            record["layouts"], self._told = self._told, []
        if self._untold:
            record["forget"], self._untold = self._untold, []
        return record

    def _operand(self, op: str, x: Any) -> Any:
        if isinstance(x, Matrix):
            if x._session is not self:
                raise ArgumentError(
                    f"{op}: an operand is of another set of workers: gather it with np.asarray first"
                )
            return x._number
        if isinstance(x, NUMBERS):
            value = x.item() if isinstance(x, np.generic) else x
            return {"c": [value.real, value.imag]} if isinstance(value, complex) else {"v": value}
        raise DTypeError(f"{op}: expected an array of these workers or a number, got {quoted(x)}")

    def _new(
        self,
        op: str,
        operands: Sequence[Any],
        shape: Sequence[int],
        dtype: np.dtype[Any],
        /,
        layout: LayoutLike = None,
        flats: Callable[[Layout], list[Array]] | None = None,
        **settings: Any,
    ) -> Matrix:
        engine = self._open()
        if isinstance(layout, str) and layout == "auto" and len(shape) == 2:
            layout = self._auto(shape, dtype)
        resolved: Layout | None = None
        if layout is not None:
            resolved = resolve(layout, shape, self.size, dtype.itemsize, op)
        made = Matrix(self, next(self._numbers), shape, dtype)
        if self._foretold is not None:
            self._foretell(op, operands, settings, resolved, made)
            return made
        given = None if flats is None or resolved is None else flats(resolved)
        with self._posting:
            if resolved is not None:
                settings["layout"] = self._layout_number(resolved)
            record = self._record(op, operands, settings)
            record["out"] = made._number
            self._posted += 1
            engine.post(record, given)
        return made

    def _auto(self, shape: Sequence[int], dtype: np.dtype[Any]) -> LayoutLike:
        """What "auto" means for a matrix: rows over as many workers as pay, by their rates."""
        (rows, columns), itemsize = shape, dtype.itemsize
        kind = kind_of(arithmetic_of(dtype, dtype, dtype))
        nbytes = rows * columns * itemsize
        if self.size == 1 or nbytes <= SMALL_BYTES:
            return "auto"
        if nbytes < _RATES_FROM and kind not in self._rates:
            return "auto"
        return auto_layout((rows, columns), self.size, itemsize, self.rates(kind))

    def _change(self, op: str, operands: Sequence[Any], **settings: Any) -> None:
        """An operation that writes to an array."""
        if self._foretold is not None:
            self._foretold.append(f"{settings.get('name', op)}: in place")
            return
        engine = self._open()
        with self._posting:
            self._posted += 1
            engine.post(self._record(op, operands, settings))

    def _ask(self, op: str, operands: Sequence[Any] = (), **settings: Any) -> list[Answer]:
        engine = self._open()
        with self._posting:
            answers = engine.ask(self._record(op, operands, settings))
        for answer, _ in answers:
            if isinstance(answer, dict) and "error" in answer:
                told = answer["error"]
                where = f" (line {told['line']})" if told["line"] else ""
                raise error_like(told["kind"], f"{told['text']}{where}")
        return answers

    def _layout(self, x: Matrix) -> Layout:
        if x._number in self._lies:
            return self._lies[x._number]
        return Layout.of_record(self._ask("info", [x])[0][0]["layout"])

    def _gather(self, x: Matrix) -> Array:
        if x._number in self._lies:
            raise ArgumentError(
                "explain: values are asked for inside it, and nothing is computed there"
            )
        answers = self._ask("pull", [x])
        layout = Layout.of_record(answers[0][0]["layout"])
        flats = [flat for _, flat in answers]
        self._client_bytes += sum(0 if flat is None else flat.nbytes for flat in flats)
        empty = np.empty(0, x.dtype)
        return making.assembled(
            making.first_holders(layout),
            x.dtype,
            [empty if flat is None else flat for flat in flats],
        )

    def wait(self) -> None:
        """Wait until the workers have done all that was asked of them."""
        self._ask("wait")

    # --- operations ---------------------------------------------------------------------------

    def _arrays(self, op: str, operands: Sequence[Any]) -> list[Any]:
        """Operands with NumPy's arrays sent to the workers: as copies, since they are the smaller ones
        mostly.
        """
        return [
            self.array(x)
            if isinstance(x, (np.ndarray, list, tuple)) and np.ndim(x)
            else x.item()
            if isinstance(x, np.ndarray)
            else x
            for x in operands
        ]

    def apply(
        self, name: str, *operands: Any, layout: LayoutLike = None, **settings: Any
    ) -> Matrix:
        """A function of elements; arrays broadcast."""
        given = self._arrays(name, operands)
        for x in given:
            self._operand(name, x)
        shape = elementwise.broadcast_shape(
            name, [x.shape if isinstance(x, Matrix) else () for x in given]
        )
        dtype = self._result_dtype(name, given, settings)
        return self._new(name, given, shape, dtype, layout, **settings)

    def _result_dtype(
        self, name: str, operands: Sequence[Any], settings: Mapping[str, Any] | None = None
    ) -> np.dtype[Any]:
        kinds = tuple(
            x.dtype if isinstance(x, Matrix) else x.item() if isinstance(x, np.generic) else x
            for x in operands
        )
        try:
            return elementwise.result_dtype(name, kinds, settings)
        except ValueError:  # of integers and a number below 0, the only one that NumPy knows
            raise ArgumentError(
                f"{name}: integers have no negative powers here: x.astype('float64') has"
            ) from None
        except (TypeError, OverflowError):
            words = ", ".join(map(str, kinds))
            raise DTypeError(
                f"{name}: takes no operands of {words}: cast them with astype"
            ) from None

    def apply_in_place(self, name: str, x: Matrix, other: Any) -> Matrix:
        """`x = name(x, other)` in the memory of `x`; its dtype and layout stay."""
        (value,) = self._arrays(name, [other])
        shape = elementwise.broadcast_shape(
            name, [x.shape, value.shape if isinstance(value, Matrix) else ()]
        )
        if shape != x.shape:
            raise ShapeError(f"{name}: in place, a result of shape {shape} does not fit {x.shape}")
        made = self._result_dtype(name, [x, value])
        if not np.can_cast(made, x.dtype, "same_kind"):
            raise DTypeError(
                f"{name}: in place, a result of {made} does not go into {x.dtype}: write x = x op y"
            )
        self._change("in_place", [x, value], name=name)
        return x

    def reduce(
        self,
        name: str,
        x: Matrix,
        axis: Any = None,
        keepdims: bool = False,
        layout: LayoutLike = None,
        dtype: Any = None,
        **settings: Any,
    ) -> Matrix:
        """A reduction over axes; `dtype`: of elements before, and of the result."""
        correction = settings.get("correction", 0)
        if isinstance(correction, bool) or not isinstance(correction, (int, float, np.number)):
            raise ArgumentError(f"{name}: correction must be a number, got {quoted(correction)}")
        if dtype is not None:
            x = x.astype(dtype, copy=False)
        axes = reducing.axes_of(name, axis, x.ndim)
        if name in ("max", "min") and not all(x.shape[i] for i in axes):
            raise ShapeError(f"{name}: an axis of size 0 has no {name}, shape {x.shape}")
        shape = reducing.reduced_shape(x.shape, axes, keepdims)
        if self._fixed:
            settings["fixed"] = True
        made = self._new(
            "reduce",
            [x],
            shape,
            reducing.reduced_dtype(name, x.dtype),
            layout,
            **{"name": name, "axis": list(axes), "keepdims": bool(keepdims), **settings},
        )
        return made if dtype is None else made.astype(dtype, copy=False)

    def along(self, name: str, x: Matrix, axis: int = -1, **settings: Any) -> Matrix:
        """A function along one axis."""
        axes = reducing.axes_of(name, axis, x.ndim)
        lost = axes if name in ("argmax", "argmin") else ()
        shape = reducing.reduced_shape(x.shape, lost, False)
        dtype = reducing.reduced_dtype(name, x.dtype)
        return self._new("along", [x], shape, dtype, name=name, axis=axes[0], **settings)

    def matmul(
        self,
        a: Any,
        b: Any,
        layout: LayoutLike = None,
        dtype: Any = None,
        wire: Any = None,
        keep: bool = False,
        compute: str | None = None,
    ) -> Matrix:
        """`a @ b`; see `md.dmath.matmul`."""
        left, right = self._arrays("matmul", [a, b])
        for x in (left, right):
            if not isinstance(x, Matrix):
                raise ShapeError(
                    f"matmul: operands are matrices or vectors, got {quoted(x)}: multiply numbers with *"
                )
        shape = product_shape(left.shape, right.shape)
        if dtype is None:
            known = promoted("matmul", left.dtype, right.dtype)
        else:
            known = as_dtype(dtype)
            for x in (left, right):
                if not goes_into(x.dtype, known):
                    raise DTypeError(
                        f"matmul: products of {x.dtype} do not go into dtype={known.name}: multiply, and "
                        "then cast with astype, or take md.dmath.real of complex ones"
                    )
        settings: dict[str, Any] = {"dtype": known.name}
        if wire is not None:
            settings["wire"] = wire_name("matmul", wire, [left.dtype, right.dtype])
        if compute is not None:
            arithmetic_of(left.dtype, right.dtype, known, compute)  # refuses what it is not for
            settings["compute"] = compute
        if keep:
            settings["keep"] = True
        if self._fixed:
            settings["fixed"] = True
        return self._new(
            "matmul", [left, right], shape, known, None if layout == "auto" else layout, **settings
        )

    def weights(self) -> dict[str, Matrix]:
        """Parameters and states of the model that these workers have trained last, by name: copies, in the
        layouts that `fit(parallel=md.parallel.Hybrid(layers=...))` gave them. They do not pass the client.

        Raises:
            ArgumentError: if none was trained in `with md.workers(...)` since these workers were started.
        """
        known = self._ask("weights")[0][0]
        if not known:
            raise ArgumentError(
                "weights: these workers have trained no model: call model.fit inside `with md.workers(...)`"
            )
        return {
            one["name"]: self._new(
                "weight", [], one["shape"], as_dtype(one["dtype"]), name=one["name"]
            )
            for one in known
        }

    # --- what would be done ---------------------------------------------------------------------

    def explain(self, function: Callable[[], Any]) -> str:
        """What the operations in a function would do, which are not carried out: layouts, bytes, candidates
        of products; of several operations at the end how many workers each computes with.

        Args:
            function: of no arguments, such as `lambda: A @ B`.

        Raises:
            ArgumentError: for anything else, within another `explain`, and where values are asked for.
        """
        if not callable(function):
            raise ArgumentError(
                f"explain: takes a function, such as lambda: A @ B, got {quoted(function)}"
            )
        if self._foretold is not None:
            raise ArgumentError("explain: within another one: call it once, of both operations")
        self.rates()  # what is measured is measured before
        found = self._explaining.found = []
        try:
            function()
            texts = [one if isinstance(one, str) else one.text for one in found]
            last = stages([one for one in found if isinstance(one, Foretold)], self.size)
            return "\n".join([*texts, last] if last else texts)
        finally:
            self._explaining.found = None
            self._lies.clear()

    def _foretell(
        self,
        op: str,
        operands: Sequence[Any],
        settings: dict[str, Any],
        target: Layout | None,
        made: Matrix,
    ) -> None:
        known = [(self._layout(x), x.dtype) if isinstance(x, Matrix) else None for x in operands]
        assert self._foretold is not None
        found = foretold(op, known, settings, target, made.shape, self.rates)
        self._lies[made._number] = found.lies
        self._foretold.append(found)
