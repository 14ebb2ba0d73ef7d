"""What an elastic scheduler does for the blocks below its device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from mirage.control.turn_taking import TurnTaking
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.fence import Fence
from mirage.engine.mailbox import Mailbox
from mirage.engine.memory_worker import MemoryWorker
from mirage.engine.tiers import present
from mirage.engine.tiers.engine_tiers import EngineTiers
from mirage.facts import KVGroups
from mirage.protocol import ModelShape
from mirage.tiers.contract import Key, Medium

TIER_POLL_S = 0.001
"""Pause of an engine in which every request waits for blocks from below the device."""

Mixable: Any = Scheduler if TYPE_CHECKING else object


class TieredMixin(Mixable):
    """Stands before `HoldingMixin`. Without a pool all it changes is what a preemption leaves."""

    worker: MemoryWorker
    pool: ElasticBlocks
    mailbox: Mailbox
    groups: KVGroups
    turn: TurnTaking
    fence: Fence
    shape: ModelShape
    tiers: EngineTiers | None = None

    def _look_below(self) -> None:
        """Once the block pool is elastic."""
        self.tiers = present.tiers()
        if self.tiers is not None:
            # What one step may take: its tokens', and a block that each request begins.
            most = self.max_num_scheduled_tokens + self.max_num_running_reqs
            self.tiers.watch(self.pool, window=self.groups.grown(most))
            self.tiers.queue = lambda: (request.request_id for request in self.waiting)
            self.tiers.loading = lambda: (r.request_id for r in self.kv_holding_waiting)
            self.tiers.on_device = self._on_device

    def _on_device(self, key: Key) -> bool:
        """Whether a block is cached there; keys are vLLM's hashes with their groups."""
        return self.pool.is_cached(key)

    def _schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super()._schedule(*args, **kwargs)
        if self.tiers is not None and not output.total_num_scheduled_tokens:
            self._rest(self.tiers)
        return output

    def _rest(self, tiers: EngineTiers) -> None:
        """Nothing runs until the pool answers or a block arrives: leave it the processor."""
        if tiers.manager.waiting or self.kv_holding_waiting or tiers.manager.has_pending_work():
            self.mailbox.wait(TIER_POLL_S)

    def _let_go(self) -> None:
        """Take back blocks whose copies have ended."""
        if self.tiers is not None:
            self.tiers.manager.begin_step()
            if self.tiers.stores is not None:
                self.tiers.stores.harvest()

    def _copied(self) -> bool:
        """Wait for copies that hold blocks; whether there were any."""
        stores = self.tiers.stores if self.tiers is not None else None
        return stores is not None and stores.drain()

    def _may_demote(self) -> bool:
        """Not between schedule() and its step: what blocks are named by is not in them yet."""
        return self.tiers is None or not self.worker.planned

    def _demote(self, extents: list[int]) -> None:
        if self.tiers is not None:
            self.tiers.demote(extents, asleep=not self._steps_soon())

    # -- requests that lose their blocks --------------------------------------------------

    def _spill(self) -> None:
        """Suspended requests give up KV, as far as the turn's end said: it may go down."""
        if self.fence.idle:
            self.turn.spill(self, self.shape.extent_bytes // self.shape.extent_blocks)

    @property
    def begun(self) -> int:
        """See `Suspended`."""
        return int(self._begun())

    @property
    def used_blocks(self) -> int:
        """See `Suspended`."""
        return self.pool.book.usable_blocks - int(self.pool.num_free_blocks)

    def give_up_newest(self) -> bool:
        """The newest that runs, or has loaded and not gone on since, loses its blocks and waits."""
        if (loaded := self._newest_loaded()) is not None:
            self._take_back(loaded)
        elif self.running:
            self._preempt_request(self.running.pop(), time.monotonic())
        else:
            return False
        return True

    def _make_way(self) -> None:
        """Requests that have loaded hold all blocks, and none finds what it needs beside them."""
        if (newest := self._newest_loaded(but=1)) is not None:
            self._take_back(newest)

    def _newest_loaded(self, but: int = 0) -> Any | None:
        """All `but` the first; None while blocks of all of them are still coming."""
        waiting = list(self.kv_holding_waiting)[but:]
        loaded = filter(self._handle_blocked_waiting_request, reversed(waiting))
        return next(loaded, None)

    def _take_back(self, request: Any) -> None:
        """As if it were preempted, of a request that vLLM holds to be waiting already."""
        ran = request.num_preemptions
        self.kv_holding_waiting.remove_request(request)
        request.status = RequestStatus.RUNNING
        self._preempt_request(request, time.monotonic())
        if not ran:  # its steps have yet to begin, for the runner too
            request.num_preemptions, request.status = 0, RequestStatus.WAITING

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """vLLM's, by priority also of a request that this very schedule() gave a part of the step.

        Its new blocks are named by what they would have held. Nobody computes that now, so the
        names go: who believed them would read, or copy, something else.
        """
        computed = request.num_computed_tokens
        coordinator = self.kv_cache_manager.coordinator
        groups = coordinator.get_blocks(request.request_id)
        for manager, blocks in zip(coordinator.single_type_managers, groups, strict=True):
            self.pool.forget(blocks[computed // manager.block_size :])
        super()._preempt_request(request, *args, **kwargs)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, for which a block that is copied would be one in use."""
        with self.mailbox.hold():
            self._copied()
            return super().reset_prefix_cache(*args, **kwargs)

    def _to_compute(self) -> Iterator[int]:
        """Tokens for which each waiting request lacks blocks; those that load have the others."""
        for request in self.kv_holding_waiting:
            yield max(0, request.num_tokens - request.num_computed_tokens)
        for request in self.waiting:
            yield request.num_tokens

    def _loaded_tokens(self, request: str) -> int:
        """Of those that a request which starts need not compute."""
        return 0 if self.tiers is None else self.tiers.manager.arrived(request)

    def _below(self) -> dict[str, Any]:
        """What `Counters` has of blocks below the device."""
        if self.tiers is None:
            return {}
        counts = self.tiers.counts
        return {
            "tokens_loaded": counts.tokens_saved,
            **{f"tokens_from_{medium}": counts.tokens_from[medium] for medium in Medium},
            "kv_bytes_up": counts.bytes_up,
            "kv_bytes_down": counts.bytes_down,
            "failed_loads": counts.failed_loads,
            "late_loads": counts.late_loads,
            "saved_s": counts.saved_s,
        }
