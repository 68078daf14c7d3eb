"""One of many models while it is trained: begun when it is its turn, and left out where it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from magmadnn.compiler.llvm.driver.rounds import Nested
from magmadnn.errors import NumericError
from magmadnn.runtime.variables import tensor_of
from magmadnn.storage.printing import note
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.history import History
from magmadnn.training.many.course import FitCourse
from magmadnn.training.many.following.followers import Lead
from magmadnn.training.many.following.kinds import Kind
from magmadnn.training.model.model import Model
from magmadnn.training.model.training_step import let_go

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.many.course import GridCourse


def leave_device(model: Model) -> None:
    """Bring a model's parameters and states to the host, and give back their memory on a device."""
    for variable in model.named().values():
        tensor_of(variable.node).memory.leave_device()


class Member:
    """A model of the set.

    Args:
        number: of the model, from 0.
        make: gives its training.
        callbacks: of it.
        keeps: whether what is compiled stays for a further training.
        device: number of the GPU that it is trained on; None for the processor.
        told: what trainings of the set have said that is said once.

    Attributes:
        kind: of a model that others are built like.
        lead: its training, once it has begun, where they can follow it.
        keeps: as given.
        waits: whether it is to begin later, since there was no memory beside others.
        history: what was measured; of a model that was left out, up to there.
        is_done: whether its training has ended, well or not.
        ticks: of the CPU's counter, that the last piece took; None once that was taken.
    """

    def __init__(
        self,
        number: int,
        make: Callable[[], Fit],
        callbacks: Sequence[Callback] = (),
        keeps: bool = True,
        device: int | None = None,
        told: set[str] | None = None,
    ) -> None:
        self.device, self._told = device, set[str]() if told is None else told
        self.number, self._make, self.keeps = number, make, keeps
        self.callbacks = callbacks
        self.kind: Kind | None = None
        self.lead: Lead | None = None
        self.history = History()
        self.is_done = self.waits = False
        self.ticks: int | None = None
        self._reason: str | None = None  # why it is to end
        self._made: Fit | None = None  # whose memory was planned
        self._fit: Fit | None = None
        self._course: FitCourse | None = None
        self._ends: AbstractContextManager[None] | None = None

    @property
    def fit(self) -> Fit:
        """Its training; it has begun."""
        assert self._fit is not None
        return self._fit

    def look_ahead(self) -> Fit:
        """Its training before it has begun, to plan memory."""
        if self._made is None:
            try:
                self._made = self._make()
            except Exception as error:
                error.add_note(f"in the training of models[{self.number}]")
                raise
        return self._made

    def _begin(self) -> None:
        """Make the training, and let callbacks begin."""
        self._fit, self._made = self._made or self._make(), None
        self._fit.tells_end, self._fit.told = False, self._told
        self.history = self._fit.history
        ends = self._fit.under_way()
        ends.__enter__()
        self._ends = ends
        if self._fit.goes_further and self._fit.batch:  # what is left of an epoch that was resumed
            self._fit.run_epoch()
        if self._fit.goes_further:
            self._course = FitCourse.made(self._fit)
        if self._course is not None and self.kind is not None:
            self.lead = Lead.of(self._course, self.kind)

    def follow(self, history: History) -> None:
        """It was trained as its lead was."""
        self.history, self.is_done = history, True

    def prepare(
        self, seconds: float, others: Callable[[], int] = int
    ) -> Nested | GridCourse | None:
        """Take what the last piece has left, and give the next one; None where there is none yet.

        What Python takes part in runs here, an epoch at a time. Where a number is NaN or infinite, this model
        is left out. Where there is no memory for it to begin beside others, it `waits`.

        Args:
            seconds: that a piece takes.
            others: tells how many are under way beside it.
        """
        self.waits = False
        try:
            return self._prepared(seconds)
        except NumericError as error:
            self.end(error)
            return None
        except MemoryError as error:
            beside = others()
            if beside and not self._has_trained:
                self._put_back(error, beside)
                return None
            error.add_note(f"in the training of models[{self.number}]")
            self.end(error)
            raise
        except BaseException as error:
            error.add_note(f"in the training of models[{self.number}]")
            self.end(error)
            raise

    def _prepared(self, seconds: float) -> Nested | GridCourse | None:
        if self._fit is None:
            self._begin()
        elif self.ticks is not None and self._course is not None:
            self._course.take(self.ticks)
            self.ticks = None
        elif self.fit.goes_further:
            self.fit.run_epoch()
        if self.fit.goes_further and self._reason is not None:
            self.fit.stop(self._reason, goes_on=True)
            self.fit.call("on_batch_end")  # which saves
        if self.fit.goes_further and self._course is not None:
            program = self._course.program(seconds)
            if program is not None:
                return program
        if not self.fit.goes_further:
            self.end()
        return None

    def take_back(self) -> None:
        """The model as it was before the last piece, if that has run and was not taken."""
        self.ticks = None
        if self._course is not None:
            self._course.take_back()

    @property
    def stacked(self) -> FitCourse | None:
        """Its course, if it runs beside others only where they do as many epochs and batches."""
        return self._course if self._course is not None and self._course.is_stacked else None

    @property
    def _has_trained(self) -> bool:
        return self._fit is not None and (self._fit.steps > 0 or bool(self.history))

    def _put_back(self, error: MemoryError, others: int) -> None:
        """As before it began, with nothing compiled; callbacks have ended, and begin anew."""
        fit, ends = self._fit, self._ends
        self._fit = self._made = self._course = self._ends = None
        if fit is not None:
            if ends is not None:
                ends.__exit__(type(error), error, error.__traceback__)
            let_go(fit.model)
        self.history, self.waits = History(), True
        note(f"fit_many: models[{self.number}] waits: no memory beside {others} others ({error})")

    def stop(self, reason: str) -> None:
        """End after the current piece; one that has not begun does not begin."""
        self._reason = reason
        if self._fit is None:
            self.history.stopped, self.is_done = reason, True

    @property
    def nbytes(self) -> int:
        """Bytes of the values of a batch; 0 where Python runs them."""
        return 0 if self._course is None else self._course.nbytes

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that a piece needs."""
        assert self._course is not None
        return self._course.scratch_bytes

    def end(self, error: BaseException | None = None) -> None:
        """Let callbacks end, and let go of what is compiled."""
        if self.is_done:
            return
        self.is_done, ends = True, self._ends
        if self.ticks is not None:  # what has run ends here, by Ctrl-C for instance
            self.take_back()
        self._course = None
        if ends is None:
            return
        kind, trace = type(error) if error else None, error.__traceback__ if error else None
        try:
            forgiven = ends.__exit__(kind, error, trace)
        except NumericError as raised:
            if raised is not error:
                raise
            forgiven = False
        finally:
            if not self.keeps:
                let_go(self.fit.model)
                if self.device is not None:
                    leave_device(self.fit.model)
            self._fit = self._ends = None  # which hold what is compiled
        if isinstance(error, NumericError) and not forgiven:
            self.history.stopped, self.history.failed = str(error), True
            note(f"fit_many: models[{self.number}] is left out, the others go on: {error}")
