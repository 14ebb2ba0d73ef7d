"""Memory side of a worker: one in each process that computes for an engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mirage.control.engine.orders import (
    Action,
    Done,
    MapExtents,
    MemoryAnswer,
    MemoryOrders,
    NotTheNext,
    SetParameters,
    UnmapExtents,
)
from mirage.control.reporting import LayerTimes
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.engine_times import EngineTimes
from mirage.engine.mailbox import Mailbox
from mirage.engine.shape import model_shape
from mirage.facts import KVGroups
from mirage.protocol import ModelShape
from vmm.driver import OutOfMemory

logger = logging.getLogger("mirage.engine.memory_worker")

MISSING = "granted and not free yet: %s"


class MeasuredSteps(NamedTuple):
    """Counts and times of a worker's steps since the engine started."""

    bytes_streamed: int
    stall_s: float
    """Seconds that steps waited for layers and experts to be loaded."""
    experts: dict[str, int]
    """The fields of `Counters` that count experts."""
    times: LayerTimes


class MemoryWorker:
    """Memory and times of one engine. It carries out the orders of the engine's scheduler
    (`mirage.control.engine.orders.Hands`)."""

    def __init__(
        self, memory: DeviceMemory, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.memory, self.settings = memory, memory.settings
        self.times = EngineTimes(memory)
        self.mailbox = Mailbox()
        self.tasks: tuple[str, ...] = ()
        """vLLM's names of the tasks that the model supports."""
        self.planned = False
        """True if a step was scheduled and not issued yet: its blocks are named by content that it
        will compute."""
        self._clock, self._epoch = clock, 0
        self._failed: Exception | None = None

    # -- facts --------------------------------------------------------------------------

    def shape(self, kv_cache_config: Any, groups: KVGroups) -> ModelShape:
        """Return the sizes of this engine's memory for the control server; call it once the KV
        buffer is made."""
        return model_shape(self.memory, kv_cache_config, groups)

    def memory_info(self) -> tuple[int, int]:
        """Return the free and total bytes of the device, where memory of other processes counts as
        used; 0 and 0 if the device is host memory."""
        return self.memory.backend.memory_info()

    def times_steps(self, of_requests: bool) -> None:
        """Set whether steps from now on are those of requests (`of_requests`): only the times of
        these are measured."""
        self.times.warm = of_requests

    def measured(self) -> MeasuredSteps:
        """Return the counts and times of all steps so far."""
        memory, times = self.memory, self.times
        streamed = memory.streamer.bytes_streamed if memory.streamer else 0
        stall_s = memory.compute.stall_s
        return MeasuredSteps(streamed, stall_s, times.expert_counts(), times.layer_times())

    # -- orders -------------------------------------------------------------------------

    def obey(self, orders: MemoryOrders) -> MemoryAnswer:
        """Carry the orders out, between steps, and return what is held afterwards. Epoch 0 restarts
        the numbering, and moves nothing. Other orders are carried out only if their epoch is one
        more than that of the last ones; else the answer has `NotTheNext`. An error is part of the
        answer; after a failed order none is carried out any more."""
        done: list[Done] = []
        if orders.epoch == 0:
            self._epoch = 0
        elif orders.epoch != self._epoch + 1:
            late = NotTheNext(f"orders {orders.epoch} came after {self._epoch}")
            return self._answer(orders, done, self._failed or late)
        elif self._failed is None:
            self._epoch = orders.epoch
            try:
                self._carry_out(orders, done)
            except Exception as error:
                self._failed = error
        return self._answer(orders, done, self._failed)

    def _answer(
        self, orders: MemoryOrders, done: list[Done], error: Exception | None
    ) -> MemoryAnswer:
        memory = self.memory
        return MemoryAnswer(
            orders.epoch,
            memory.layers_remapped,
            memory.stream_slots,
            memory.experts,
            0 if memory.kv is None else len(memory.kv.extents.mapped),
            memory.held_bytes(0, 0),
            tuple(done),
            error,
        )

    def _carry_out(self, orders: MemoryOrders, done: list[Done]) -> None:
        memory = self.memory
        since, was_absent = self._clock(), memory.absent
        if orders.grant_bytes is not None:
            memory.regrant(orders.grant_bytes)
        memory.emptied.update(orders.emptied)
        with memory.driver.releasing():
            for action in orders.actions:
                begun = self._clock()
                count = self._act(action)
                done.append(Done(count, self._clock() - begun))
            memory.pool.trim()
        self.times.moved(self._clock() - since, was_absent=was_absent)
        if any(one.number for one in done):
            memory.self_check()

    def _act(self, action: Action) -> int:
        match action:
            case SetParameters():
                return self._set_parameters(action)
            case UnmapExtents(extents):
                self.memory.unmap_extents(list(extents))
                return len(extents)
            case MapExtents(extents, insists):
                return self._map(list(extents), insists=insists)

    # -- memory that was granted --------------------------------------------------------

    def _set_parameters(self, wanted: SetParameters) -> int:
        error = self._refusal(wanted)
        if error is not None and wanted.insists:
            logger.warning(MISSING, error)
            self.memory.uncache()
            error = self._refusal(wanted)
        return int(error is None)

    def _refusal(self, wanted: SetParameters) -> OutOfMemory | None:
        """Move layers and experts as `wanted`. Return the error if the device lacks memory that is
        granted; None once they have moved."""
        try:
            self.memory.move_layers(wanted.layers_remapped, wanted.stream_slots, wanted.experts)
        except OutOfMemory as error:
            if not wanted.takes:
                raise
            return error
        return None

    def _map(self, extents: list[int], *, insists: bool) -> int:
        """Map the first of these extents, as many as the device has memory for, and return their
        number. With `insists`, torch's cache is emptied and the rest tried again."""
        mapped = self._mapped(extents)
        if mapped < len(extents) and insists:
            logger.warning(MISSING, f"{mapped} of {len(extents)} KV extents could be had")
            self.memory.uncache()
            mapped += self._mapped(extents[mapped:])
        return mapped

    def _mapped(self, extents: list[int]) -> int:
        """Map the first of these extents, as many as the device has memory for, and return their
        number; 0 if mapping them runs out of memory."""
        try:
            return len(self.memory.map_extents(extents))
        except OutOfMemory as error:
            logger.warning(MISSING, error)
            return 0
