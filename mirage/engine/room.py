"""Room for an engine's requests: KV memory, tiers below it, and the hold of requests that lack
blocks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from mirage.config import Policy
from mirage.control.engine.extent_book import ExtentBook
from mirage.control.engine.fence import Fence
from mirage.control.engine.orders import MemoryOrders
from mirage.control.engine.wants import Wants
from mirage.control.growth_hold import GrowthHold, never
from mirage.engine.agent import Agent
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.growth_holding import HoldingKVCacheManager
from mirage.engine.kv_memory import ElasticKVMemory, KVMemory
from mirage.engine.memory_worker import MemoryWorker
from mirage.engine.queues import EngineQueues
from mirage.engine.step_bounds import StepBounds
from mirage.engine.step_counts import StepCounts
from mirage.engine.step_hold import StepHold
from mirage.engine.tiers import present
from mirage.engine.tiers.scheduling import SchedulerTiers
from mirage.engine.turn import EngineTurn
from mirage.facts import KVGroups
from mirage.protocol import ModelShape


class RequestRoom(NamedTuple):
    """Parts of an engine's scheduler that depend on the policy: they decide where its requests find
    memory."""

    kv: KVMemory
    tiers: SchedulerTiers
    hold: StepHold


@dataclass(frozen=True)
class RoomMaker:
    """Parts of a new scheduler that its `RequestRoom` is made of."""

    worker: MemoryWorker
    manager: Any
    """vLLM's KV cache manager."""
    shape: ModelShape
    groups: KVGroups
    queues: EngineQueues
    turn: EngineTurn
    fence: Fence
    bounds: StepBounds
    counts: StepCounts
    agent: Agent | None

    def make(self, step_tokens: int) -> RequestRoom:
        """Return the scheduler's parts for the policy in its settings. One step writes at most
        `step_tokens` tokens."""
        heard = never if self.agent is None else self.agent.last_heard
        growth_hold = GrowthHold(self.worker.settings.hold_s, time.monotonic, heard)
        if self.worker.settings.policy is Policy.STATIC:
            tiers = SchedulerTiers(None, self.queues)
            kv = KVMemory(self.manager.block_pool, self.shape)
            return RequestRoom(kv, tiers, self._hold(growth_hold, kv, tiers))
        tiers = SchedulerTiers(present.tiers(), self.queues)
        kv = self._elastic(growth_hold, tiers, step_tokens)
        hold = self._hold(growth_hold, kv, tiers)
        HoldingKVCacheManager.of(self.manager, hold)
        return RequestRoom(kv, tiers, hold)

    def _elastic(
        self, growth_hold: GrowthHold, tiers: SchedulerTiers, step_tokens: int
    ) -> ElasticKVMemory:
        settings = self.worker.settings
        blocks = ElasticBlocks(self.manager.block_pool, self._book(), present.content())
        tiers.watch(blocks, window=self.groups.grown(step_tokens))
        wants = Wants(
            self.groups,
            self.shape.extent_blocks,
            settings.lookahead_steps,
            settings.headroom_extents,
            settings.kept,
            growth_hold,
        )
        return ElasticKVMemory(
            self.worker,
            self.manager,
            blocks,
            self.shape,
            wants,
            turn=self.turn,
            fence=self.fence,
            queues=self.queues,
            tiers=tiers,
            counts=self.counts,
        )

    def _book(self) -> ExtentBook:
        """Return the book of the mapped extents, and let the worker number orders anew. Without a
        KV cache there are no extents: vLLM's null block has no memory."""
        mapped = self.worker.obey(MemoryOrders(0)).extents
        return ExtentBook(self.shape.max_extents, self.shape.extent_blocks, mapped)

    def _hold(self, growth_hold: GrowthHold, kv: KVMemory, tiers: SchedulerTiers) -> StepHold:
        return StepHold(
            growth_hold,
            self.bounds,
            answerable=self.agent is not None,
            turn=self.turn,
            queues=self.queues,
            kv=kv,
            tiers=tiers,
        )
