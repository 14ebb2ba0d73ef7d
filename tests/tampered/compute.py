"""Compute without waits for streamed layers, so that a test sees the effect of a missing wait."""

from __future__ import annotations

from contextlib import AbstractContextManager

from mirage.streaming.compute import Compute
from vmm.driver import Event


class RunsAhead:
    """The compute of a backend, whose steps run ahead of copies.

    Between steps it waits for what it skipped. Else memory would move under copies that are late.
    """

    stall_s = 0.0

    def __init__(self, waiting: Compute) -> None:
        self._waiting = waiting
        self._skipped: set[Event] = set()

    def record(self, event: Event) -> None:
        self._waiting.record(event)

    def wait(self, event: Event) -> None:
        """Do not wait for the copy."""
        self._skipped.add(event)

    def step(self) -> AbstractContextManager[None]:
        return self._waiting.step()

    def wait_for_steps(self) -> None:
        for event in self._skipped:
            event.wait()
        self._skipped.clear()
        self._waiting.wait_for_steps()

    def synchronize(self) -> None:
        self._waiting.synchronize()
