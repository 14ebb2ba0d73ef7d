"""The side of a worker on which memory is: one in each process that computes for an engine."""

from __future__ import annotations

from mirage.engine.device_memory import DeviceMemory
from mirage.engine.engine_times import EngineTimes
from mirage.engine.mailbox import Mailbox


class MemoryWorker:
    """Memory and times of one engine, and what its scheduler has to know of its worker."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory, self.settings = memory, memory.settings
        self.times = EngineTimes(memory)
        self.mailbox = Mailbox()
        self.tasks: tuple[str, ...] = ()
        """vLLM's names of what the model can do."""
        self.planned = False
        """True if a step was scheduled that has not been issued: vLLM names blocks by what it will
        compute."""
