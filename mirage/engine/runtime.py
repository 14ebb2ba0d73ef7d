"""The one engine of this process: where its worker and its scheduler meet.

vLLM builds both in the EngineCore process, by class name, so they cannot be handed to each
other. `MemoryWorker` is made by the worker and looked up by the scheduler.
"""

from __future__ import annotations

from mirage.engine.memory_worker import MemoryWorker
from mirage.vllm_hooks.given import EXECUTOR


class NoEngine(RuntimeError):
    """Scheduler and worker do not share a process."""


_worker: MemoryWorker | None = None


def publish(worker: MemoryWorker) -> None:
    """The worker's side, for the scheduler that vLLM builds next."""
    global _worker
    _worker = worker


def worker() -> MemoryWorker:
    """Raises `NoEngine` with what to do."""
    if _worker is None:
        raise NoEngine(
            "the worker runs in another process: use --distributed-executor-backend "
            f"{EXECUTOR} and tensor parallel size 1"
        )
    return _worker
