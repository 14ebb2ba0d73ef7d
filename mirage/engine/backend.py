"""Differences between a host and a GPU: the driver, the computing side, the timing of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch

from mirage.control.compute_time import ComputeTime, Smoothed, Undisturbed
from mirage.engine.settings import EngineSettings
from mirage.engine.stepclock import EventClock
from mirage.streaming.compute import Compute, HostCompute, StreamCompute
from vmm.driver import Driver, Event, Stream
from vmm.host import HostDriver

Stepped = Callable[[float], None]
"""Told of the seconds that a step computed, stalls left out."""


@dataclass(frozen=True)
class Backend:
    """An engine's device: its driver, the side that computes, and its measurements."""

    driver: Driver
    compute: Compute
    timed: Callable[[Stepped], AbstractContextManager[None]]
    """Times one step; tells when it knows, perhaps only after some more."""
    compute_time: ComputeTime
    """Estimate of T_c from the steps that were timed."""
    memory_info: Callable[[], tuple[int, int]]
    """Free and total bytes of the device, with what other processes use; 0 on a host."""
    uncache: Callable[[], None]
    """Returns to the device the memory that torch's allocator caches."""


def make_backend(settings: EngineSettings) -> Backend:
    """Raises `vmm` errors if there is no such device."""
    return _cuda(settings) if settings.device == "cuda" else _host(settings)


def _host(settings: EngineSettings) -> Backend:
    driver = HostDriver(settings.page, copy_bytes_per_s=settings.copy_bytes_per_s)
    return computed_by_host(driver, HostCompute())


def computed_by_host(driver: Driver, compute: HostCompute) -> Backend:
    """Compute is synchronous on the calling thread, with any memory driver."""

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
    """Lets the clock see how long the device waits for copies."""

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
        """Stall seconds of the steps that have passed."""
        return self._clock.stall_s

    def wait(self, event: Event) -> None:
        with self._clock.stall():
            super().wait(event)
