"""The one engine of this process: its scheduler finds its worker's memory here.

vLLM builds scheduler and executor by class name, so one cannot be handed to the other.
"""

from __future__ import annotations

from mirage.engine.memory_worker import MemoryWorker
from mirage.vllm_hooks.given import EXECUTOR


class NoEngine(RuntimeError):
    """Error: scheduler and worker are in different processes."""


_worker: MemoryWorker | None = None


def register(worker: MemoryWorker) -> None:
    """Keep the executor's only worker in this module, where the scheduler that vLLM builds next
    finds it.
    """
    global _worker
    _worker = worker


def worker() -> MemoryWorker:
    """Return the registered worker. Raise `NoEngine`, which says what to do, if there is none."""
    if _worker is None:
        raise NoEngine(
            "the worker runs in another process: use --distributed-executor-backend "
            f"{EXECUTOR} and tensor parallel size 1"
        )
    return _worker
