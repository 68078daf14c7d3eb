"""What was done and how fast: counts, the bill, traces, rates; the part of a session that tells of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from magmadnn.dmath.client.engines import Answer
from magmadnn.dmath.client.timeline import Timeline
from magmadnn.dmath.products.arithmetic import COMPUTE
from magmadnn.dmath.products.rates import Rates
from magmadnn.errors import ArgumentError, UnknownNameError, quoted

_SUMMED = (
    *("sent_bytes", "messages", "planned_bytes"),
    *("device_allocations", "host_to_device_bytes", "device_to_host_bytes"),
    *("graphs_made", "graph_launches", "graph_failures"),
)


class Accounting:
    """The part of a session that tells what was done."""

    _client_bytes: int
    _posted: int
    _rates: dict[str, Rates]
    _ask: Callable[..., list[Answer]]
    _strict = False

    def trace(self, function: Callable[[], Any]) -> Timeline:
        """Run the operations in a function, and tell when each worker multiplied and when elements were on
        their way to it: `print(w.trace(lambda: A @ B))`, `.to_chrome_trace(path)`.

        Args:
            function: of no arguments.

        Raises:
            ArgumentError: for anything else.
        """
        if not callable(function):
            raise ArgumentError(
                f"trace: takes a function, such as lambda: A @ B, got {quoted(function)}"
            )
        self._ask("trace", on=True)
        try:
            function()
        finally:
            told = self._ask("trace", on=False)
        return Timeline.of([answer or [] for answer, _ in told])

    def counters(self) -> dict[str, int]:
        """What was counted so far.

        `client_bytes`: elements' bytes that went through this process: `array`, `np.asarray`. `operations`:
        posted by it. `sent_bytes` and `messages`: among workers. `planned_bytes`: what layouts foretold of
        these. `array_bytes`: held by workers now. `kept_bytes`: of blocks kept for later products, on the
        worker that keeps most; `saved_bytes`: what they have spared. `buffer_bytes`: that workers keep beside
        arrays for operations to come. `page_faults`: pages of memory that
        workers' systems gave them; their number stays once memory is there. `device_allocations`: blocks of
        GPU memory that CuPy's pool asked the driver for; their number stays likewise.
        `host_to_device_bytes`, `device_to_host_bytes`: copied between workers' hosts and their GPUs; what
        libraries do inside a call, such as messages through a host, is not in it. `graphs_made`: phases of
        products that workers captured as CUDA graphs when they came again; `graph_launches`: how often these
        ran; `graph_failures`: phases that could not be captured and run call by call.
        """
        answers = [answer for answer, _ in self._ask("counters")]
        lines = [one for answer in answers for one in answer["lines"].values()]
        found = {"client_bytes": self._client_bytes, "operations": self._posted}
        for name in _SUMMED:
            found[name] = sum(one[name] for one in lines)
        found["array_bytes"] = sum(answer["array_bytes"] for answer in answers)
        found["kept_bytes"] = max(answer["kept_bytes"] for answer in answers)
        for name in ("saved_bytes", "buffer_bytes", "page_faults"):
            found[name] = sum(answer[name] for answer in answers)
        return found

    def bill(self) -> str:
        """Bytes, messages and time of each line of the user's code, those that sent most first.

        Time is that of the slowest worker, waiting for others included; of workers with GPUs that of their
        hosts. Beside it stands what the planner foretold of a line's products, where rates were known.
        """
        answers = [answer["lines"] for answer, _ in self._ask("counters")]
        rows = []
        for line in dict.fromkeys(line for one in answers for line in one):
            counts = [one[line] for one in answers if line in one]
            sent, messages = (sum(c[name] for c in counts) for name in ("sent_bytes", "messages"))
            seconds = max(c["seconds"] for c in counts)
            operations = max(c["operations"] for c in counts)
            foretold = max(c["predicted_seconds"] for c in counts)
            rows.append((sent, messages, seconds, foretold, operations, line))
        rows.sort(key=lambda row: (-row[0], -row[2], row[5]))
        total = [sum(row[i] for row in rows) for i in range(5)]
        text = ["      bytes  messages    seconds   foretold  operations  line"]
        for b, m, s, f, o, line in [*(row for row in rows if row[5]), (*total, "in all")]:
            shown = f"{f:10.4f}" if f else f"{'':10}"
            text.append(f"{b:11d} {m:9d} {s:10.4f} {shown} {o:11d}  {line}")
        return "\n".join(text)

    @contextmanager
    def no_implicit_messages(self) -> Iterator[None]:
        """In the block an operation that sends elements among workers without having been told to fails: its
        result raises an ArgumentError when it is used, with the line and the bytes. `to`, `replica` and new
        arrays may send.
        """
        before, self._strict = self._strict, True
        self._ask("strict", on=True)
        try:
            yield
        finally:
            self._strict = before
            self._ask("strict", on=before)

    def rates(self, compute: str = "float32") -> Rates:
        """How fast the workers compute and send: measured the first time.

        Args:
            compute: the arithmetic of products, as for `md.dmath.matmul`.
        """
        if compute not in COMPUTE:
            raise UnknownNameError.of("rates: compute", compute, COMPUTE)
        if compute not in self._rates:
            self._rates[compute] = Rates(**self._ask("measure", kind=compute)[0][0])
        return self._rates[compute]

    def set_rates(self, rates: Rates) -> None:
        """Let the planner predict from these rates."""
        if not isinstance(rates, Rates):
            raise ArgumentError(f"set_rates: takes md.dmath.Rates(...), got {quoted(rates)}")
        self._rates = dict.fromkeys(COMPUTE, rates)
        self._ask("set_rates", **vars(rates))

    def keep_blocks(self, nbytes: int) -> None:
        """Let products called with `keep=True` keep received blocks, up to so many bytes on each worker; 0
        drops them.
        """
        if isinstance(nbytes, bool) or not isinstance(nbytes, (int, np.integer)) or nbytes < 0:
            raise ArgumentError(
                f"keep_blocks: bytes must be a whole number from 0, got {quoted(nbytes)}"
            )
        self._ask("set_budget", nbytes=int(nbytes))
