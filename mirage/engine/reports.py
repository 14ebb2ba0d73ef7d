"""State of one engine, for the control server."""

from __future__ import annotations

from msgspec.structs import replace

from mirage.control.reporting import HeldMemory, make_report
from mirage.control.step_periods import StepPeriods
from mirage.counters import Counters
from mirage.engine.kv_memory import KVMemory
from mirage.engine.memory_worker import MeasuredSteps, MemoryWorker
from mirage.engine.queues import EngineQueues
from mirage.engine.step_counts import StepCounts
from mirage.engine.tiers.scheduling import SchedulerTiers
from mirage.protocol import ModelShape, Report


class EngineReports:
    """Maker of an engine's reports: what its parts hold and want."""

    def __init__(
        self,
        worker: MemoryWorker,
        shape: ModelShape,
        *,
        kv: KVMemory,
        queues: EngineQueues,
        tiers: SchedulerTiers,
        counts: StepCounts,
        periods: StepPeriods,
    ) -> None:
        self._worker, self._shape = worker, shape
        self._kv, self._queues, self._tiers, self._counts = kv, queues, tiers, counts
        self._periods = periods

    def make(self, *, revision: int, holds_turn: bool) -> Report:
        """Return a report of the present state, with the `revision` of the newest allotment that
        the engine has seen, and with `holds_turn`, True while a step of the engine may be running.

        It is cheap: no loop over blocks while an extent is one block.
        """
        measured = self._worker.measured()
        step_s = self._periods.beside_s(measured.times.token_s)
        return make_report(
            revision=revision,
            holds_turn=holds_turn,
            held=self._held(),
            wanted=self._kv.demand(),
            extent_blocks=self._shape.extent_blocks,
            running=self._queues.running,
            waiting=self._queues.waiting,
            counters=self._counters(measured),
            times=replace(measured.times, step_s=step_s),
            cached=self._kv.cached(),
            asleep=self._kv.asleep,
        )

    def _held(self) -> HeldMemory:
        booked, kv = self._kv.booked(), self._kv.extents()
        return HeldMemory(
            held_bytes=booked.held_bytes,
            layers_remapped=booked.layers_remapped,
            stream_slots=booked.stream_slots,
            extents=kv.backed,
            used_extents=kv.used,
            used_blocks=max(0, kv.usable_blocks - 1 - self._kv.free_blocks),
            usable_blocks=kv.usable_blocks - 1,
            experts=booked.experts,
        )

    def _counters(self, measured: MeasuredSteps) -> Counters:
        counts = self._counts
        return Counters(
            started=counts.started,
            preemptions=counts.preemptions,
            steps=counts.steps,
            bytes_streamed=measured.bytes_streamed,
            tokens=counts.tokens,
            prefill_tokens=counts.prefill_tokens,
            recomputed_tokens=counts.recomputed_tokens,
            tokens_from_device=counts.tokens_from_device,
            stall_s=measured.stall_s,
            **self._tiers.counters(),
            **measured.experts,
        )
