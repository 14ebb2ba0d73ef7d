"""The side of a worker on which memory is: one in each process that computes for an engine."""

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
    """Numbers that a worker counts and times."""

    bytes_streamed: int
    stall_s: float
    """Seconds that steps waited for streamed layers."""
    experts: dict[str, int]
    """The fields of `Counters` that count experts."""
    times: LayerTimes


class MemoryWorker:
    """Memory and times of one engine; `mirage.control.engine.orders.Hands` of its scheduler."""

    def __init__(
        self, memory: DeviceMemory, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.memory, self.settings = memory, memory.settings
        self.times = EngineTimes(memory)
        self.mailbox = Mailbox()
        self.tasks: tuple[str, ...] = ()
        """vLLM's names of what the model can do."""
        self.planned = False
        """True if a step was scheduled that has not been issued: vLLM names blocks by what it will
        compute."""
        self._clock, self._epoch = clock, 0
        self._failed: Exception | None = None

    # -- facts --------------------------------------------------------------------------

    def shape(self, kv_cache_config: Any, groups: KVGroups) -> ModelShape:
        """Shape that the control server is told, once the KV buffer is there."""
        return model_shape(self.memory, kv_cache_config, groups)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device, with what other processes use; 0 on a host."""
        return self.memory.backend.memory_info()

    def times_steps(self, of_requests: bool) -> None:
        """False from now on for steps that say nothing of requests'."""
        self.times.warm = of_requests

    def measured(self) -> MeasuredSteps:
        """Counts and times up to now."""
        memory, times = self.memory, self.times
        streamed = memory.streamer.bytes_streamed if memory.streamer else 0
        stall_s = memory.compute.stall_s
        return MeasuredSteps(streamed, stall_s, times.expert_counts(), times.layer_times())

    # -- orders -------------------------------------------------------------------------

    def obey(self, orders: MemoryOrders) -> MemoryAnswer:
        """Carry the orders out, between steps. Epoch 0 begins anew, and moves nothing."""
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
        """The device's, where granted memory is asked for; None once parameters have moved."""
        try:
            self.memory.move_layers(wanted.layers_remapped, wanted.stream_slots, wanted.experts)
        except OutOfMemory as error:
            if not wanted.takes:
                raise
            return error
        return None

    def _map(self, extents: list[int], *, insists: bool) -> int:
        """Extents that the device has memory for; it is asked once more if torch cached some."""
        mapped = self._mapped(extents)
        if mapped < len(extents) and insists:
            logger.warning(MISSING, f"{mapped} of {len(extents)} KV extents could be had")
            self.memory.uncache()
            mapped += self._mapped(extents[mapped:])
        return mapped

    def _mapped(self, extents: list[int]) -> int:
        """Extents that were mapped; 0 if the device has pages and no memory to map them."""
        try:
            return len(self.memory.map_extents(extents))
        except OutOfMemory as error:
            logger.warning(MISSING, error)
            return 0
