"""The one engine of this process: where its worker and its scheduler meet.

vLLM builds both in the EngineCore process, by class name, so they cannot be handed to each
other. `EngineMemory` is made by the worker and looked up by the scheduler.
"""

from __future__ import annotations

from mirage.engine.memory import EngineMemory


class NoEngine(RuntimeError):
    """Scheduler and worker do not share a process."""


_memory: EngineMemory | None = None


def publish(memory: EngineMemory) -> None:
    """The worker's memory, for the scheduler that vLLM builds next."""
    global _memory
    _memory = memory


def memory() -> EngineMemory:
    """Raises `NoEngine` with what to do."""
    if _memory is None:
        raise NoEngine(
            "the worker runs in another process: use --distributed-executor-backend "
            "mirage.engine.executor.InProcessExecutor and tensor parallel size 1"
        )
    return _memory
