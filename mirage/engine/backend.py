"""Differences between a host and a GPU: the driver, the computing side, the timing of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch

from mirage.control.compute_time import ComputeTime, Smoothed, Undisturbed
from mirage.engine.stepclock import EventClock
from mirage.engine_settings import EngineSettings
from mirage.streaming.compute import Compute, HostCompute, StreamCompute
from vmm.driver import Driver, Event, Stream
from vmm.host import HostDriver

Stepped = Callable[[float], None]
"""Function that is called with the seconds for which a step computed, waits for loads left out."""


@dataclass(frozen=True)
class Backend:
    """Device of an engine: its driver, the side that computes, and its measurements."""

    driver: Driver
    compute: Compute
    timed: Callable[[Stepped], AbstractContextManager[None]]
    """Context manager around one step; calls its argument when the step's time is known, perhaps
    only after some more steps."""
    compute_time: ComputeTime
    """Estimate of a whole step's compute seconds (T_c for each layer) from the timed steps."""
    memory_info: Callable[[], tuple[int, int]]
    """Function that returns the free and total bytes of the device, where memory of other processes
    counts as used; 0 and 0 if the device is host memory."""
    uncache: Callable[[], None]
    """Function that returns to the device the memory that torch's allocator caches."""


def make_backend(settings: EngineSettings) -> Backend:
    """Return the backend of the device in `settings`. Raise `VmmError` if there is no such device,
    or if it has no pages of that size."""
    return _cuda(settings) if settings.device == "cuda" else _host(settings)


def _host(settings: EngineSettings) -> Backend:
    driver = HostDriver(settings.page, copy_bytes_per_s=settings.copy_bytes_per_s)
    return computed_by_host(driver, HostCompute())


def computed_by_host(driver: Driver, compute: HostCompute) -> Backend:
    """Return a backend with this memory driver, in which the calling thread itself computes the
    steps."""

    @contextmanager
    def timed(stepped: Stepped) -> Iterator[None]:
        stalled, start = compute.stall_s, time.perf_counter()
        yield
        stepped(time.perf_counter() - start - (compute.stall_s - stalled))

    return Backend(
        driver, compute, timed, Smoothed(), memory_info=lambda: (0, 0), uncache=lambda: None
    )


def _cuda(settings: EngineSettings) -> Backend:
    from vmm.cuda import CudaDriver

    driver = CudaDriver(settings.page, device=torch.cuda.current_device())

    @cache
    def adopted(handle: int) -> Stream:
        return driver.adopt(handle)

    clock = EventClock(partial(torch.cuda.Event, enable_timing=True))
    compute = _TimedWaits(
        lambda: adopted(torch.cuda.current_stream().cuda_stream),
        driver.synchronize,
        driver.event,
        clock,
    )
    empty = torch.cuda.empty_cache
    return Backend(driver, compute, clock.timed, Undisturbed(), driver.memory_info, empty)


class _TimedWaits(StreamCompute):
    """Compute stream that lets the clock measure how long the device waits for copies."""

    def __init__(
        self,
        current: Callable[[], Stream],
        synchronize: Callable[[], None],
        event: Callable[[], Event],
        clock: EventClock,
    ) -> None:
        super().__init__(current, synchronize, event)
        self._clock = clock

    @property
    def stall_s(self) -> float:
        """Seconds for which the device waited for copies, in all steps that have ended."""
        return self._clock.stall_s

    def wait(self, event: Event) -> None:
        with self._clock.stall():
            super().wait(event)
