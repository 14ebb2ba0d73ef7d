"""Host time of an engine's thread in a step, and the device's times of compute and waits in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Spans:
    """Times of a vLLM engine core in this process, measured only inside `counted`."""

    def __init__(self, core: Any) -> None:
        held = core.scheduler.worker
        self._memory, self._times = held.memory, held.times
        self._worker = core.model_executor.driver_worker.worker
        self._issued: list[float] = []
        self._computed: list[float] = []
        self._streaming_s = 0.0

    @contextmanager
    def counted(self) -> Iterator[dict[str, float]]:
        """Context that gives a dictionary, filled at its end. All values are seconds.

        `compute_s` is per layer and step (T_c), `stall_s` per step. `host_s` is the time to issue a
        step, and `streaming_host_s` the part of it for waits and copies of streamed layers.
        """
        found: dict[str, float] = {}
        self._issued, self._computed, self._streaming_s = [], [], 0.0
        stalled = self._memory.compute.stall_s
        wrapped = self._wrapped()
        for owner, name, instead in wrapped:
            setattr(owner, name, instead)
        try:
            yield found
        finally:
            for owner, name, _ in wrapped:
                delattr(owner, name)
        steps, layers = max(len(self._issued), 1), self._memory.layers
        found["compute_s"] = _median(self._computed) / max(layers, 1)
        found["stall_s"] = (self._memory.compute.stall_s - stalled) / steps
        found["host_s"] = _median(self._issued)
        found["streaming_host_s"] = self._streaming_s / steps

    def _wrapped(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        memory, worker = self._memory, self._worker
        calls = [(worker, "execute_model", self._issuing(worker.execute_model))]
        calls.append((self._times, "stepped", self._computing(self._times.stepped)))
        if memory.streamer is not None:
            for name in ("before", "after"):
                call = getattr(memory.streamer, name)
                calls.append((memory.streamer, name, self._streaming(call)))
        return calls

    def _issuing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def issuing(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            done = call(*args, **kwargs)
            self._issued.append(time.perf_counter() - start)
            return done

        return issuing

    def _computing(self, call: Callable[[float], None]) -> Callable[[float], None]:
        def computing(compute_s: float) -> None:
            self._computed.append(compute_s)
            call(compute_s)

        return computing

    def _streaming(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def streaming(index: int) -> None:
            start = time.perf_counter()
            call(index)
            self._streaming_s += time.perf_counter() - start

        return streaming


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0
