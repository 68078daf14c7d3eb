"""The native side of the driver: threads that draw the tasks of a slice, phase by phase.

A program is a table of tasks, one cache line each. A slice is so many batches of all tasks, numbered on.
Memory shared by the threads is one array of 8-byte words, `Control`:

- `DRAWN` counts in its low half the tasks that were drawn, and in its high half those that are done;
- `GATE` says in its low half up to which number tasks may be drawn: to the end of a phase, and one more than
  there are when all are done. Who does the last task of a phase opens the next. Its high half counts that;
- `SLICE` holds the number of the first task, and in its high half how many there are.

A thread that waits holds nothing: threads that sleep, or that have no core, keep nobody waiting, and the
one that asks for the slice goes on alone until they come. The counts go on from slice to slice, and only
who has drawn a task looks into the table, so a thread that comes late can neither mistake one slice for
another nor read the table of a program that is gone.

Waiting is a bounded number of looks, then sleep in the operating system until a word changes: a thread that
waits long does not burn a core. On Linux the sleep is a futex; elsewhere naps of 50 microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from llvmlite import ir

from magmadnn.compiler.llvm.ir.builder import I32, I64, POINTER, VOID, Array, Code, Value
from magmadnn.compiler.llvm.ir.target import FUTEX_CALL, Target

LINE = 8  # words in a cache line
# Kernel and arguments; where tasks are timed, ticks and calls, and of the last call begin, end and thread;
# how many tasks there are to the end of its phase.
TASK_WORDS, PHASE_END = 8, 7
RUN, WORK = "run_slice", "worker"
START, FINISH = "start_slice", "finish_slice"  # the two halves of RUN
NESTED = "nested"  # a program as a task of another one

_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # within one process
_NAP_MICROSECONDS = 50
HALF, LOW = 32, 0xFFFFFFFF  # bits of half a word


class Control(IntEnum):
    """Places in the control array, in words."""

    DRAWN = 0 * LINE
    GATE = DRAWN + 1  # threads wait for its high half to change
    SLEEPERS = 1 * LINE  # threads asleep there
    COMMAND = 2 * LINE  # slices begun so far; workers wait for it to change
    IDLE = 3 * LINE  # workers asleep there
    SLICE = 4 * LINE
    THREADS = 5 * LINE  # from here on written by Python only, before a slice
    SPINS = THREADS + 1  # looks at a word before sleeping
    STOP = THREADS + 2
    FIRST_BATCH = THREADS + 3
    BATCHES = THREADS + 4
    TASKS = THREADS + 5  # address and number
    TASK_COUNT = THREADS + 6
    SLEEP = THREADS + 7  # address of libc's syscall or usleep
    WORDS = 6 * LINE


def driver_text(target: Target, futex: bool, timed: bool) -> str:
    """LLVM IR of what runs slices, of the signature `(control, scratch)`, and of `nested`, that of kernels.

    Args:
        target: the machine.
        futex: whether to sleep in a futex or in naps.
        timed: whether to count ticks and calls of tasks.
    """
    module = ir.Module("driver")
    module.triple = target.triple
    for name, write, numbers in (
        (RUN, _write_run, []),
        (START, _write_start, []),
        (FINISH, _write_finish, []),
        (WORK, _write_worker, []),
        (NESTED, _write_nested, [I64]),
    ):
        function = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, *numbers]), name)
        function.attributes.add("nounwind")
        code = Code(function)
        threads = _Threads(code, target, futex, timed)
        write(threads)
        code.give_back()
    return str(module)


def _write_run(threads: _Threads) -> None:
    """The caller's part of a slice: wake the workers, take part, see that all is done."""
    with threads.code.choose(threads.control[Control.THREADS] > 1) as (many, one):
        with many:
            threads.call_workers()
            threads.take_part(to_the_end=True)
        with one:
            threads.alone()


def _write_start(threads: _Threads) -> None:
    """Wake the workers, who begin; the caller goes on with something else."""
    with threads.code.when(threads.control[Control.THREADS] > 1):
        threads.call_workers()


def _write_finish(threads: _Threads) -> None:
    """Take part in a slice that was started, and see that all is done."""
    with threads.code.choose(threads.control[Control.THREADS] > 1) as (many, one):
        with many:
            threads.take_part(to_the_end=True)
        with one:
            threads.alone()


def _write_nested(threads: _Threads) -> None:
    """As many batches as the control says, numbered on from one call to the next by the outer batch."""
    code, control = threads.code, threads.control
    batch = Value(code, code.function.args[2])
    threads.alone(control[Control.FIRST_BATCH] + batch * control[Control.BATCHES])


def _write_worker(threads: _Threads) -> None:
    """A worker's life: wait for a slice, take part, until told to stop."""
    code, word = threads.code, threads.word(Control.COMMAND)
    seen = code.variable(code.lift(0, I32))
    with code.repeat() as leave:
        threads.wait(word, seen.value, Control.IDLE)
        seen.value = code.atomic_load(word)
        leave.when(threads.control[Control.STOP].differs(0))
        threads.take_part(to_the_end=False)


@dataclass(frozen=True)
class _Look:
    """What a thread saw: three words, and what they say, counted from the slice's first task."""

    part: Value
    gate: Value
    word: Value
    length: Value  # tasks of the slice
    number: Value  # of the task that is drawn next
    open: Value  # tasks that may be drawn


class _Threads:
    """Writes what the threads do; `control` and `scratch` are the arguments of the function."""

    def __init__(self, code: Code, target: Target, futex: bool, timed: bool) -> None:
        self.code, self.futex, self.timed = code, futex, timed
        self.number = FUTEX_CALL.get(target.triple.split("-")[0], 0)
        self.control = code.array(code.function.args[0], I64)
        self.scratch = code.array(code.function.args[1], I64)

    def word(self, place: Control, half: int = 0) -> Array:
        """A half of a word that threads wait on, as futexes have 32 bits; 0 is the low one."""
        return self.control.at(int(place)).viewed(I32).at(half)

    def task(self, index: Value) -> Array:
        """A line of the table."""
        tasks = self.code.array(self.control.viewed(POINTER)[Control.TASKS], I64)
        return tasks.at(index * TASK_WORDS)

    def alone(self, first: Value | None = None) -> None:
        """All batches of a slice, on one thread."""
        code, control = self.code, self.control
        first = control[Control.FIRST_BATCH] if first is None else first
        with code.loop(first, first + control[Control.BATCHES]) as batch:
            with code.loop(0, control[Control.TASK_COUNT]) as index:
                self._call(self.task(index), batch)

    # ------------------------------------------------------------------ slices of several threads

    def call_workers(self) -> None:
        """Begin a slice and wake the workers."""
        self.begin()
        self.code.atomic_add(self.word(Control.COMMAND), 1)
        self.wake(self.word(Control.COMMAND), Control.IDLE)

    def begin(self) -> None:
        """Open the first phase, then say which tasks make the slice; all that were drawn before are done."""
        code, control = self.code, self.control
        length = control[Control.BATCHES] * control[Control.TASK_COUNT]
        start = code.atomic_load(control, int(Control.DRAWN)) & LOW
        end = code.variable(code.integer(1))  # a slice without tasks is done
        with code.when(length > 0):
            end.value = self.task(code.integer(0))[PHASE_END]
        self._set_gate(start, end.value, code.atomic_load(control, int(Control.GATE)))
        fresh = start | (length << HALF)
        code.atomic_add(control, fresh - control[Control.SLICE], int(Control.SLICE))

    def take_part(self, to_the_end: bool) -> None:
        """Do tasks as long as there are any to draw; `to_the_end`: and until all are done."""
        code, spins = self.code, self.control[Control.SPINS]
        looks = code.variable(spins)
        with code.repeat() as leave:
            seen = self._look()
            leave.when(seen.open > seen.length if to_the_end else seen.number >= seen.length)
            with code.choose((seen.number < seen.open) & (seen.number < seen.length)) as (yes, no):
                with yes, code.when(self._draw(seen.word)):
                    self._do(seen)
                    looks.value = spins
                with no, code.choose(looks.value > 0) as (look, sleep):
                    with look:
                        looks.value = looks.value - 1
                        code.pause()
                    with sleep:
                        self._sleep_at_gate(seen.gate)

    def _look(self) -> _Look:
        """The words, the slice first: an old one has no task left in newer counts."""
        load, control = self.code.atomic_load, self.control
        part, gate, word = (
            load(control, int(place)) for place in (Control.SLICE, Control.GATE, Control.DRAWN)
        )
        number, opened = (word - part) & LOW, (gate - part) & LOW
        return _Look(part, gate, word, (part >> HALF) & LOW, number, opened)

    def _draw(self, word: Value) -> Value:
        """Take the task that comes next after `word`; whether nobody was faster."""
        fresh = (word & ~LOW) | ((word + 1) & LOW)
        return self.code.atomic_exchange(self.control, word, fresh, int(Control.DRAWN))

    def _do(self, seen: _Look) -> None:
        """Do the task that was drawn; if it is the last one of a phase to be done, open the next phase."""
        code, control = self.code, self.control
        count = control[Control.TASK_COUNT]
        self._call(
            self.task(seen.number % count), control[Control.FIRST_BATCH] + seen.number // count
        )
        before = code.atomic_add(control, 1 << HALF, int(Control.DRAWN))
        done = ((before >> HALF) - seen.part + 1) & LOW
        with code.when(done.equals(seen.open)):
            end = code.variable(seen.length + 1)
            with code.when(done < seen.length):
                at = done % count
                end.value = done - at + self.task(at)[PHASE_END]
            self._set_gate(seen.part, end.value, seen.gate)
            self.wake(self.word(Control.GATE, 1), Control.SLEEPERS)

    def _set_gate(self, part: Value, end: Value, old: Value) -> None:
        """Let tasks up to number `end` of the slice be drawn; nobody else writes this word meanwhile."""
        opened = ((old >> HALF) + 1) << HALF
        fresh = opened | ((part + end) & LOW)
        self.code.atomic_add(self.control, fresh - old, int(Control.GATE))

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

    def _sleep_at_gate(self, gate: Value) -> None:
        """Sleep until it is another than `gate`, or for a nap."""
        code, word = self.code, self.word(Control.GATE, 1)
        old = code.convert((gate >> HALF) & LOW, I32)
        # Announced before the last look, and looked for after the change: no wake-up is lost.
        code.atomic_add(self.control, 1, int(Control.SLEEPERS))
        with code.when(code.atomic_load(word).equals(old)):
            self._sleep(word, old)
        code.atomic_add(self.control, -1, int(Control.SLEEPERS))

    def wait(self, word: Array, old: Value, sleepers: Control) -> None:
        """Wait until `word` is no longer `old`."""
        code = self.code
        looks = code.variable(self.control[Control.SPINS])
        with code.repeat() as leave:
            leave.when(code.atomic_load(word).differs(old) | looks.value.equals(0))
            looks.value = looks.value - 1
            code.pause()
        with code.when(code.atomic_load(word).equals(old)):
            code.atomic_add(self.control, 1, int(sleepers))  # as above
            with code.repeat() as leave:
                leave.when(code.atomic_load(word).differs(old))
                self._sleep(word, old)
            code.atomic_add(self.control, -1, int(sleepers))

    def wake(self, word: Array, sleepers: Control) -> None:
        """Wake all that sleep until `word` changes."""
        if not self.futex:
            return  # naps end by themselves
        code = self.code
        with code.when(code.atomic_load(self.control, int(sleepers)) > 0):
            self._futex(word, _FUTEX_WAKE, code.integer(2**31 - 1))

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
