"""The native side of the driver: worker threads that walk a table of tasks, phase by phase.

Memory shared by the threads is one array of 8-byte words, `Control`, in which every word that threads
write stands in a cache line of its own. A program is two more tables: phases (first task, end, ticket;
one cache line each) and tasks (likewise). In each batch the threads draw tickets for the tasks of a phase,
and wait for each other at its end; the last to arrive puts the ticket back.

Waiting is a bounded number of looks at a word, then sleep in the operating system until it changes: a
thread that waits long, or for one that has no core, does not burn one. On Linux the sleep is a futex;
elsewhere naps of 50 microseconds.
"""

from __future__ import annotations

from enum import IntEnum

from llvmlite import ir

from .builder import I32, I64, POINTER, VOID, Array, Code, Value
from .target import Target

LINE = 8  # words in a cache line
# Kernel and arguments; where tasks are timed, ticks and calls, and of the last call begin, end and thread.
TASK_WORDS = 8
RUN, WORK = "run_slice", "worker"

_FUTEX_CALL = {"x86_64": 202, "aarch64": 98}  # number of the system call
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # within one process
_NAP_MICROSECONDS = 50


class Control(IntEnum):
    """Places in the control array, in words."""

    ARRIVED = 0 * LINE  # threads at the barrier
    PASSED = 1 * LINE  # barriers passed so far; threads wait for it to change
    SLEEPERS = 2 * LINE  # threads asleep there
    COMMAND = 3 * LINE  # slices begun so far; workers wait for it to change
    IDLE = 4 * LINE  # workers asleep there
    THREADS = 5 * LINE  # from here on written by Python only, before a slice
    SPINS = THREADS + 1  # looks at a word before sleeping
    STOP = THREADS + 2
    FIRST_BATCH = THREADS + 3
    BATCHES = THREADS + 4
    PHASES = THREADS + 5  # address and number
    PHASE_COUNT = THREADS + 6
    TASKS = THREADS + 7
    SLEEP = 6 * LINE  # address of libc's syscall or usleep
    WORDS = 7 * LINE


def can_use_futex(target: Target) -> bool:
    """Whether threads can sleep in a futex on `target`."""
    return "linux" in target.triple and target.triple.split("-")[0] in _FUTEX_CALL


def driver_text(target: Target, futex: bool, timed: bool) -> str:
    """LLVM IR of `run_slice(control, scratch)` and `worker(control, scratch)`.

    Args:
        target: the machine.
        futex: whether to sleep in a futex or in naps.
        timed: whether to count ticks and calls of tasks.
    """
    module = ir.Module("driver")
    module.triple = target.triple
    for name, write in ((RUN, _write_run), (WORK, _write_worker)):
        function = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER]), name)
        function.attributes.add("nounwind")
        code = Code(function)
        threads = _Threads(code, target, futex, timed)
        write(threads)
        code.give_back()
    return str(module)


def _write_run(threads: _Threads) -> None:
    """The caller's part of a slice: wake the workers, and take part as one of the threads."""
    code, control = threads.code, threads.control
    with code.when(control[Control.THREADS] > 1):
        code.atomic_add(threads.word(Control.COMMAND), 1)
        threads.wake(Control.COMMAND, Control.IDLE)
    threads.slice()


def _write_worker(threads: _Threads) -> None:
    """A worker's life: wait for a slice, take part, until told to stop."""
    code = threads.code
    seen = code.variable(code.lift(0, I32))
    with code.repeat() as leave:
        threads.wait(Control.COMMAND, seen.value, Control.IDLE)
        seen.value = seen.value + 1
        leave.when(threads.control[Control.STOP].differs(0))
        threads.slice()


class _Threads:
    """Writes what the threads do; `control` and `scratch` are the arguments of the function."""

    def __init__(self, code: Code, target: Target, futex: bool, timed: bool) -> None:
        self.code, self.futex, self.timed = code, futex, timed
        self.number = _FUTEX_CALL.get(target.triple.split("-")[0], 0)
        self.control = code.array(code.function.args[0], I64)
        self.scratch = code.array(code.function.args[1], I64)

    def word(self, place: Control) -> Array:
        """A word of the control array that threads wait on: its low half, as futexes have 32 bits."""
        return self.control.at(int(place)).viewed(I32)

    def slice(self) -> None:
        """All batches of a slice."""
        code, control = self.code, self.control
        first, threads = control[Control.FIRST_BATCH], control[Control.THREADS]
        phases = code.array(control.viewed(POINTER)[Control.PHASES], I64)
        tasks = code.array(control.viewed(POINTER)[Control.TASKS], I64)
        count = control[Control.PHASE_COUNT]
        with code.loop(first, first + control[Control.BATCHES]) as batch:
            with code.loop(0, count) as p:
                phase = phases.at(p * LINE)
                with code.choose(threads > 1) as (many, one):
                    with many:
                        self._draw(tasks, phase, batch)
                        self._meet(phase, threads)
                    with one, code.loop(phase[0], phase[1]) as task:
                        self._call(tasks.at(task * TASK_WORDS), batch)

    def _draw(self, tasks: Array, phase: Array, batch: Value) -> None:
        """Do tasks of a phase as long as there are any."""
        code = self.code
        with code.repeat() as leave:
            task = phase[0] + code.atomic_add(phase, 1, 2)
            leave.when(task >= phase[1])
            self._call(tasks.at(task * TASK_WORDS), batch)

    def _call(self, task: Array, batch: Value) -> None:
        code = self.code
        start = code.clock() if self.timed else None
        arguments = code.array(task.viewed(POINTER)[1], I64)
        code.call_address(task[0], VOID, arguments, self.scratch, batch)
        if start is not None:
            end = code.clock()
            task[2] = task[2] + (end - start)
            task[3] = task[3] + 1
            task[4], task[5] = start, end
            task[6] = code.number_of(self.scratch)  # which no other thread has

    def _meet(self, phase: Array, threads: Value) -> None:
        """The barrier at the end of a phase."""
        code = self.code
        passed = code.atomic_load(self.word(Control.PASSED))
        arrived = code.atomic_add(self.control, 1, int(Control.ARRIVED)) + 1
        with code.choose(arrived >= threads) as (last, others):
            with last:
                phase[2] = 0
                self.control[Control.ARRIVED] = 0
                code.atomic_add(self.word(Control.PASSED), 1)
                self.wake(Control.PASSED, Control.SLEEPERS)
            with others:
                self.wait(Control.PASSED, passed, Control.SLEEPERS)

    def wait(self, place: Control, old: Value, sleepers: Control) -> None:
        """Wait until the word at `place` is no longer `old`."""
        code, word = self.code, self.word(place)
        looks = code.variable(self.control[Control.SPINS])
        with code.repeat() as leave:
            leave.when(code.atomic_load(word).differs(old) | looks.value.equals(0))
            looks.value = looks.value - 1
            code.pause()
        with code.when(code.atomic_load(word).equals(old)):
            # Announced before the last look, and looked for after the change: no wake-up is lost.
            code.atomic_add(self.control, 1, int(sleepers))
            with code.repeat() as leave:
                leave.when(code.atomic_load(word).differs(old))
                self._sleep(word, old)
            code.atomic_add(self.control, -1, int(sleepers))

    def wake(self, place: Control, sleepers: Control) -> None:
        """Wake all that sleep at `place`."""
        if not self.futex:
            return  # naps end by themselves
        code = self.code
        with code.when(code.atomic_load(self.control, int(sleepers)) > 0):
            self._futex(self.word(place), _FUTEX_WAKE, code.integer(2**31 - 1))

    def _sleep(self, word: Array, old: Value) -> None:
        if self.futex:
            self._futex(word, _FUTEX_WAIT, self.code.convert(old, I64))
        else:
            nap = self.code.lift(_NAP_MICROSECONDS, I32)
            self.code.call_address(self.control[Control.SLEEP], I32, nap)

    def _futex(self, word: Array, operation: int, value: Value) -> None:
        code = self.code
        call, what, nothing = (code.integer(x) for x in (self.number, operation, 0))
        sleep = self.control[Control.SLEEP]
        code.call_address(sleep, I64, call, word, what, value, nothing, variadic=True)
