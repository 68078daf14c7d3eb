"""Memory on a device that belongs to whoever made it."""

from __future__ import annotations

import numpy as np

from magmadnn.memory import Kind, MemoryManager
from magmadnn.runtime.cuda.schedule.hazards import Span


class Block:
    """Memory on the device, of at least one byte."""

    def __init__(self, nbytes: int, device: int) -> None:
        self.nbytes, self.device = nbytes, device
        self._memory = MemoryManager(max(nbytes, 1), np.uint8, Kind.DEVICE, device)
        self.address = self._memory.device_pointer(write=True)
        self.span: Span = (self.address, self.address + max(nbytes, 1))
