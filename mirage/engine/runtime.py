"""The one engine of this process: where its scheduler meets the memory of its worker.

vLLM builds scheduler and executor by class name, so they cannot be handed to each other.
"""

from __future__ import annotations

from mirage.engine.memory_worker import MemoryWorker
from mirage.vllm_hooks.given import EXECUTOR


class NoEngine(RuntimeError):
    """Scheduler and worker do not share a process."""


_worker: MemoryWorker | None = None


def register(worker: MemoryWorker) -> None:
    """The executor's only worker, for the scheduler that vLLM builds next."""
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
