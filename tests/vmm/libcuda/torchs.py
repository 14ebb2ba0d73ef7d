"""Strict stand-ins for the parts of torch.cuda that an engine uses, over the driver's stand-in.

Torch without CUDA has none of them. As in torch, an event has a time only if it was made with
timing, is recorded on the current stream, and tells a difference only when both events have passed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cuda.bindings import driver as cu

from vmm.cuda_calls import Code, answer, call
from vmm.cuda_context import PrimaryContext
from vmm.driver import VmmError


class TorchCuda:
    """Stand-in for the module `torch.cuda` on device 0, with the parts that `mirage.engine.backend`
    uses.
    """

    def __init__(self) -> None:
        self.context = PrimaryContext(0)
        self.emptied = 0
        with self.context.current():
            self._stream = call(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> CurrentStream:
        """The only stream, which all threads have, because an engine enqueues its steps on one
        stream.
        """
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
        """True if the event has passed. As in torch, an event that was never recorded counts as
        passed.
        """
        with self._cuda.context.current():
            (code,) = answer(cu.cuEventQuery, self._handle)
        if code and code != Code.CUDA_ERROR_NOT_READY:
            raise RuntimeError(f"CUDA error {code}")
        return not code

    def elapsed_time(self, end: TimedEvent) -> float:
        """Time from this event to `end` in milliseconds. Raises `ValueError`, as torch does, if one
        of them is untimed, not recorded or not completed.
        """
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
