"""Strict stand-ins for what an engine asks torch.cuda for, over the stand-in for libcuda.

Torch without CUDA has none of it. As torch's: an event is timed only if it was made so, is
recorded on the current stream, and tells a time only when both of a pair have passed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cuda.bindings import driver as cu

from vmm.cuda_calls import Code, answer, call
from vmm.cuda_context import PrimaryContext
from vmm.driver import VmmError


class TorchCuda:
    """`torch.cuda`, as far as `mirage.engine.backend` uses it, of device 0."""

    def __init__(self) -> None:
        self.context = PrimaryContext(0)
        self.emptied = 0
        with self.context.current():
            self._stream = call(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> CurrentStream:
        """The same for all threads: an engine enqueues its steps on one."""
        return CurrentStream(self, self._stream)

    def empty_cache(self) -> None:
        self.emptied += 1

    def Event(self, *, enable_timing: bool = False) -> TimedEvent:
        return TimedEvent(self, enable_timing)


class CurrentStream:
    def __init__(self, cuda: TorchCuda, handle: Any) -> None:
        self._cuda, self._handle = cuda, handle

    @property
    def cuda_stream(self) -> int:
        return int(self._handle)

    def synchronize(self) -> None:
        with self._cuda.context.current():
            call(cu.cuStreamSynchronize, self._handle)


class TimedEvent:
    def __init__(self, cuda: TorchCuda, enable_timing: bool) -> None:
        self._cuda, self._timed, self._recorded = cuda, enable_timing, False
        flags = cu.CUevent_flags
        kind = flags.CU_EVENT_DEFAULT if enable_timing else flags.CU_EVENT_DISABLE_TIMING
        with cuda.context.current():
            self._handle = call(cu.cuEventCreate, kind)

    def record(self) -> None:
        with self._cuda.context.current():
            call(cu.cuEventRecord, self._handle, self._cuda._stream)
        self._recorded = True

    def query(self) -> bool:
        """Torch calls an event that was never recorded passed, too."""
        with self._cuda.context.current():
            (code,) = answer(cu.cuEventQuery, self._handle)
        if code and code != Code.CUDA_ERROR_NOT_READY:
            raise RuntimeError(f"CUDA error {code}")
        return not code

    def elapsed_time(self, end: TimedEvent) -> float:
        """Milliseconds."""
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._recorded and end._recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise ValueError("Both events must be completed before calculating elapsed time.")
        with self._cuda.context.current():
            return float(call(cu.cuEventElapsedTime, self._handle, end._handle))

    def __del__(self) -> None:
        with suppress(AttributeError, VmmError), self._cuda.context.current():
            call(cu.cuEventDestroy, self._handle)
