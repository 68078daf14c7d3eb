"""What training asks of every step that several ranks share."""

from __future__ import annotations

from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError, MagmaDNNError, NumericError
from magmadnn.optim import Step


class RanksStep(Step):
    """A step of one rank among several; see `Step`.

    Attributes:
        is_scattered: whether ranks have different parts of parameters or of the optimiser's state between
            steps, so that `collect` is needed before anybody looks at them.
    """

    is_scattered = False
    _comm: Communicator

    def next_batch(self, rows: int, epoch: int, batch: int, batches: int | None, size: int) -> None:
        """Be told of the batch that is run next: samples of all ranks, and its place in training.

        Args:
            rows: of the batch.
            epoch: its number.
            batch: its number in the epoch.
            batches: of the epoch, if known.
            size: rows of those batches that are not the last of an epoch.
        """

    def last_batch(self) -> tuple[int, float] | None:
        """Samples and weight of the batch that was run; None where it is the one that was told of."""
        return None

    def collect(self) -> None:
        """Give all ranks all parameters, and the optimiser's state; all of them call it."""

    def begin_epoch(self) -> None:
        """Go on from the model's parameters, which callbacks may have set."""

    def _told(self, error: Exception | None, otherwise: Exception | None = None) -> Exception:
        """What all ranks raise: their own error, else the first of another rank, else `otherwise`."""
        texts = self._comm.exchange(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            return error
        found = [(rank, text) for rank, text in enumerate(texts) if text is not None]
        if not found:
            return otherwise or NumericError(
                "the sum of the shards' losses has NaN or infinity, though none of them has: lower the "
                "learning rate, or use float64"
            )
        rank, text = found[0]
        kind = NumericError if text.startswith("NumericError") else MagmaDNNError
        return kind(
            f"rank {rank} of {self._comm.size} stopped the step: {text}; nothing was updated on any"
        )


def refuse(way: str, precision: str, device: str) -> None:
    """Look whether ranks can train so.

    Raises:
        ArgumentError: if they cannot.
    """
    if device != "cpu":
        raise ArgumentError(
            f"{way}: trains on the CPU, the model is on {device!r}: give Model(device='cpu')"
        )
    if precision == "mixed_fp16":
        raise ArgumentError(
            f"{way}: mixed_fp16 leaves out steps by what one rank finds: use precision='mixed_bf16'"
        )
