"""Holding a running request that lacks KV blocks, where vLLM would preempt one.

One `schedule()` of vLLM's comes by here three times, in this order:

1. Of each running request it asks `KVCacheManager.allocate_slots` for blocks. None means that there
   are none; then `HoldingKVCacheManager` counts what is missing and tells `_lacks`, which decides.
2. Before it preempts anybody for it, it asks `Scheduler._request_blocks_can_be_freed`. False leaves
   this request, and the running ones behind it, out of the step, and nobody is preempted.
3. It admits waiting requests, unless `_pause_state` says that none is to be: they would take the
   blocks that the held request is short of.

A request is held until memory comes or a refusal; how long at most, `GrowthHold` says.

A waiting request may hold blocks as well: those that it has loaded. vLLM admits loads only as far
as the blocks that they need beside them are free. If these have gone to others since, and nothing
runs that will free some, it is held as a running one is; after a refusal the newest makes way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from mirage.control.growth_hold import GrowthHold
from mirage.control.turn_taking import TurnTaking
from mirage.engine.agent import Agent
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.mailbox import Mailbox
from mirage.engine.report_pace import Reporter

HOLD_POLL_S = 0.005
"""Pause of an engine that has nothing to run until memory comes."""

Mixable: Any = Scheduler if TYPE_CHECKING else object


class HoldingKVCacheManager(KVCacheManager):
    """vLLM's manager, which tells what a running request lacked when there was no memory."""

    lacks: Callable[[int], None]
    """Told how many blocks were missing, inside schedule()."""
    recalls: Callable[[], bool]
    """Whether running requests have to be preempted, whatever is free."""
    copied: Callable[[], bool]
    """Waits for copies that hold blocks; whether there were any."""
    stuck: Callable[[Any], bool]
    """Predicate: a waiting request holds blocks, and no running one will free any."""

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        *args: Any,
        num_lookahead_tokens: int = 0,
        **kwargs: Any,
    ) -> Any:
        """vLLM's; a waiting request that finds no memory simply waits.

        A running one gets nothing while memory is called back: vLLM then preempts the request
        that it thinks right, and asks again.
        """
        running = request.status == RequestStatus.RUNNING
        if running and self.recalls():
            return None
        allocate = partial(
            super().allocate_slots,
            request,
            num_new_tokens,
            *args,
            num_lookahead_tokens=num_lookahead_tokens,
            **kwargs,
        )
        blocks = allocate()
        begun = running or self.stuck(request)
        if blocks is None and begun and self.copied():
            blocks = allocate()
        if blocks is None and begun:
            # A waiting one gets blocks for all its tokens or none.
            left = 0 if running else request.num_tokens - request.num_computed_tokens
            missing = self._missing(request, max(num_new_tokens, left), num_lookahead_tokens)
            if missing > 0:
                self.lacks(missing)
        return blocks

    def _missing(self, request: Any, new_tokens: int, lookahead_tokens: int) -> int:
        """Blocks that a running request lacks.

        vLLM's own count for a request that has nothing to find in the prefix cache any more. The
        blocks that newcomers leave free are for it, so they are none of what it lacks.
        """
        most = self.max_model_len
        computed = min(request.num_computed_tokens, most)
        needed = self.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(computed + new_tokens + lookahead_tokens, most),
            new_computed_blocks=self.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=request.num_computed_tokens,
            num_local_computed_tokens=request.num_computed_tokens,
            num_tokens_main_model=computed + new_tokens,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return int(needed) - int(self.block_pool.get_num_free_blocks())


class HoldingMixin(Mixable):
    """Stands before a scheduler of vLLM's that reports and takes turns, see `ObservingMixin`."""

    agent: Agent | None
    turn: TurnTaking
    reporter: Reporter
    mailbox: Mailbox
    pool: ElasticBlocks
    _pause_state: PauseState

    def _prepare_to_hold(
        self, hold_s: float, recalls: Callable[[], bool], copied: Callable[[], bool]
    ) -> None:
        """Before the first step. `hold_s` as in `GrowthHold`, the others as the manager's."""
        self.kv_cache_manager.__class__ = HoldingKVCacheManager
        self.kv_cache_manager.lacks = self._lacks
        self.kv_cache_manager.recalls = recalls
        self.kv_cache_manager.copied = copied
        self.kv_cache_manager.stuck = self._stuck
        self.growth_hold = GrowthHold(hold_s, time.monotonic, self._heard)
        self._holding = False
        """Whether a request is held in the present step."""
        self._blocked = False
        """True if a request lacks blocks in it, none runs, and nothing is waited for."""

    def _schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._holding = self._blocked = False
        self.growth_hold.begin_step()
        output = super()._schedule(*args, **kwargs)
        starving = self._holding and not output.total_num_scheduled_tokens
        self._holding = False
        if self.growth_hold.end_step():
            self.reporter.now()
        if self._blocked:
            self._make_way()
        if starving:
            # Nothing can run until memory comes: sleep until the control server speaks.
            self.mailbox.wait(HOLD_POLL_S)
        return output

    # -- what vLLM comes by in schedule(), in its order ----------------------------------

    def _lacks(self, blocks: int) -> None:
        self.growth_hold.lacks(blocks, self.pool.num_free_blocks)
        answerable = self.turn.granted
        self._holding = self.agent is not None and self.growth_hold.may_hold(answerable=answerable)
        if self._holding:
            # Until this schedule() ends: see `ObservingMixin._schedule`.
            self._pause_state = PauseState.PAUSED_NEW
        self._blocked = not self._holding and not self.running

    def _stuck(self, request: Any) -> bool:
        return request.num_computed_tokens > 0 and not self.running

    def _make_way(self) -> None:
        """Let a waiting request that holds blocks give them to another; nothing without tiers."""

    def _request_blocks_can_be_freed(self, request: Any) -> bool:
        return not self._holding and bool(super()._request_blocks_can_be_freed(request))

    def _heard(self) -> float:
        return -inf if self.agent is None else self.agent.heard
