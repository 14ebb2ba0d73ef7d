"""vLLM's scheduler, asking for memory before it preempts.

`make_scheduler` picks vLLM's synchronous or asynchronous scheduler as vLLM would and adds
one of two mixins: `ObservingMixin` reports and takes turns (policy static), `ElasticMixin`
also lets the KV cache grow and shrink.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from mirage.config import Policy
from mirage.control.demand import Demand
from mirage.control.engine.extent_book import ExtentBook
from mirage.control.engine.wants import Wants
from mirage.control.reporting import Cached, HeldMemory, make_report
from mirage.control.turn_taking import TurnTaking
from mirage.counters import Counters
from mirage.engine import descendants, prefill, runtime
from mirage.engine.agent import Agent
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.fence import Fence
from mirage.engine.firststep import FirstStep, lacks_input
from mirage.engine.growth_holding import HoldingMixin
from mirage.engine.kvgroups import kv_groups
from mirage.engine.mixed import name_by_mask
from mirage.engine.pace import Pace
from mirage.engine.reconcile import Reconciler
from mirage.engine.report_pace import Reporter
from mirage.engine.shape import model_shape
from mirage.engine.tiers import present
from mirage.engine.tiers.scheduling import TieredMixin
from mirage.protocol import (
    PROTOCOL_VERSION,
    Allotment,
    Hello,
    Pulse,
    Refusal,
    Report,
    Stepped,
    ToEngine,
    Turn,
)
from mirage.units import ceil_div

logger = logging.getLogger("mirage.engine.scheduler")

TURN_POLL_S = 0.05
"""Longest sleep while another engine has the turn; then vLLM sees to requests and signals."""


# What the mixins rely on, for the type checker; in the end they stand before vLLM's classes.
Mixable: Any = Scheduler if TYPE_CHECKING else object


class ObservingMixin(Mixable):
    """Takes turns and reports; leaves every decision to vLLM."""

    _pause_state: PauseState

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        self.worker = runtime.worker()
        self.memory, self.times = self.worker.memory, self.worker.times
        self.settings = self.worker.settings
        self.groups = kv_groups(vllm_config, kv_cache_config.kv_cache_groups)
        self.shape = model_shape(self.memory, kv_cache_config, self.groups)
        self.fence = Fence()
        self.preemptions = 0
        self.passes = self._passes_told = 0
        self.tokens = 0
        self.prefill_tokens = self.tokens_from_device = 0
        self.revision = 0
        self.turn = TurnTaking(temporal=self.settings.temporal)
        self._said_holding: bool | None = None
        self._old_only = False
        """Whether only requests that ran before are scheduled in this step."""
        self.mailbox = self.worker.mailbox
        self._prepare()
        self.agent = self._connect()
        self.reporter = Reporter(self.report, self.agent)
        self.mailbox.handle = self._handle
        self.first: FirstStep | None = None
        """The engine's own request, until it has been computed; nothing is counted by then."""
        self._own_steps = 0
        if self.agent is not None:
            self.agent.start(self._hello(), self._pulse)
        if self.settings.first_step:
            self._begin_first(vllm_config)

    def _prepare(self) -> None:
        """What a subclass sets up before the engine introduces itself."""

    def _connect(self) -> Agent | None:
        path = self.settings.control
        return None if path is None else Agent(path, self.mailbox)

    def _hello(self) -> Hello:
        held = self.report().held_bytes
        return Hello(PROTOCOL_VERSION, self.settings.tenant, os.getpid(), self.shape, held)

    def _pulse(self) -> Pulse:
        """Of another thread: reads nothing but numbers and lengths.

        A call that is stuck counts as a request, as one that ends the last request may be.
        """
        requests = sum(self.get_request_counts()) or int(self.mailbox.is_held)
        if self.first is not None and not self.passes:
            requests = 0  # vLLM's loop has not begun
        long = requests > 0 and self.passes == self._passes_told
        self._passes_told = self.passes
        children_s = descendants.cpu_seconds(os.getpid()) if long else 0.0
        return Pulse(self.passes, requests, time.process_time(), children_s)

    # -- the engine's own request -------------------------------------------------------

    def _begin_first(self, vllm_config: Any) -> None:
        if (why := lacks_input(vllm_config.model_config)) is not None:
            logger.warning("no first step is computed before requests are: %s", why)
            self._end_first()
            return
        self.first = FirstStep(vllm_config, self.worker.tasks, self.hash_block_size)
        self.times.warm = False  # its steps say nothing of T_c
        self.add_request(self.first.request)

    def _end_first(self) -> None:
        """Count steps from now on, and tell the control server that the first one is over."""
        self.first, self.times.warm = None, True
        self._own_steps = self.fence.scheduled
        if self.agent is not None:
            self.agent.send(Stepped(*self.memory.backend.memory_info()))

    # -- vLLM's hooks -------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, once the engine has the turn."""
        self.passes += 1
        with self.mailbox.hold():
            self._await_turn()
            output = self._schedule(*args, **kwargs)
            if output.total_num_scheduled_tokens:
                self.fence.scheduled += 1
                self.worker.planned = True
            self._count(output)
            self._speak()
            return output

    def _count(self, output: Any) -> None:
        """What this step computes, and what requests that start in it need not compute."""
        if self.first is not None:
            return
        self.tokens += output.total_num_scheduled_tokens
        for request, found in prefill.starting(output):
            self.tokens_from_device += max(0, found - self._loaded_tokens(request))
        self.prefill_tokens += prefill.computed(output, self.requests)

    def _loaded_tokens(self, request: str) -> int:
        return 0

    def _schedule(self, *args: Any, **kwargs: Any) -> Any:
        before = self._pause_state
        if before is PauseState.UNPAUSED and not self.turn.granted:
            self._pause_state = self._without_turn()
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self._pause_state = before
            self._old_only = False

    def _without_turn(self) -> PauseState:
        """Draining admits only who ran before. Else nothing is scheduled, so that vLLM comes
        to process what is still in flight.
        """
        if not self.turn.may_step(self._begun()):
            return PauseState.PAUSED_ALL
        self._old_only = self._preempted() > 0
        return PauseState.UNPAUSED if self._old_only else PauseState.PAUSED_NEW

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        if self._old_only and request.status is RequestStatus.WAITING:
            return False  # vLLM skips it in this step
        return bool(super()._handle_blocked_waiting_request(request))

    def _begun(self) -> int:
        """Requests that a draining turn must finish: running ones, and those preempted."""
        return len(self.running) + self._preempted()

    def _preempted(self) -> int:
        """Requests that ran before; vLLM keeps them at the head of the queue."""
        status = RequestStatus.PREEMPTED
        return sum(1 for _ in takewhile(lambda r: r.status is status, self.waiting))

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """vLLM's; one more step has been processed."""
        with self.mailbox.hold():
            if scheduler_output.total_num_scheduled_tokens:
                self.fence.processed += 1
            out = super().update_from_output(scheduler_output, model_runner_output)
            if self.first is not None and self.first.processed(out):
                self._end_first()
            self._processed()
            self._speak(urgent=not self.running and not self.waiting)
            return out

    def _processed(self) -> None:
        """After a step was processed."""

    def _preempt_request(self, *args: Any, **kwargs: Any) -> None:
        self.preemptions += 1
        super()._preempt_request(*args, **kwargs)

    # vLLM calls these between steps, while the agent's thread may act on an idle engine.

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, with the engine held."""
        name_by_mask(request)
        with self.mailbox.hold():
            return super().add_request(request, *args, **kwargs)

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, with the engine held."""
        with self.mailbox.hold():
            return super().finish_requests(*args, **kwargs)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, with the engine held."""
        with self.mailbox.hold():
            return super().reset_prefix_cache(*args, **kwargs)

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, with the engine held."""
        with self.mailbox.hold():
            return super().make_stats(*args, **kwargs)

    def shutdown(self) -> None:
        """vLLM's, and the end of the conversation with the control server.

        vLLM calls it in a ``finally``, so that an exception that ends the core is seen here.
        """
        if self.agent is not None:
            error = sys.exception()
            self.agent.close(error if isinstance(error, Exception) else None)
        super().shutdown()

    # -- control messages, with the engine held ------------------------------------------

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Turn):
            self.turn.told(message)
        elif isinstance(message, Allotment):
            self.revision = max(self.revision, message.revision)
        self.reporter.now()

    def _await_turn(self) -> None:
        # Once, not until it comes: vLLM's loop must go on to notice new and aborted requests.
        if not self.turn.may_step(self._begun()) and self.fence.idle:
            self._speak()
            self.mailbox.wait(TURN_POLL_S)

    def _holds_turn(self) -> bool:
        return self.turn.holds(self._begun(), executing=not self.fence.idle)

    def _speak(self, *, urgent: bool = False) -> None:
        """Report if it is time, and at once when the turn has been taken up or yielded."""
        self.reporter.maybe(urgent=urgent or self._holds_turn() != self._said_holding)

    # -- state --------------------------------------------------------------------------

    def report(self) -> Report:
        """The present state. Cheap: no loop over blocks while an extent is one block."""
        pool, memory = self.kv_cache_manager.block_pool, self.memory
        extents, used_extents, usable = self._kv_extents()
        self._said_holding = self._holds_turn()
        return make_report(
            revision=self.revision,
            holds_turn=self._said_holding,
            held=HeldMemory(
                held_bytes=memory.held_bytes(extents, self.shape.extent_bytes),
                alpha=memory.alpha,
                beta=memory.beta,
                extents=extents,
                used_extents=used_extents,
                used_blocks=max(0, usable - 1 - pool.get_num_free_blocks()),
                usable_blocks=usable - 1,
                experts=memory.experts,
            ),
            wanted=self._demand(),
            extent_blocks=self.shape.extent_blocks,
            running=len(self.running),
            waiting=self._waiting_count(),
            counters=Counters(
                preemptions=self.preemptions,
                steps=0 if self.first else max(0, self.fence.processed - self._own_steps),
                bytes_streamed=memory.streamer.bytes_streamed if memory.streamer else 0,
                tokens=self.tokens,
                prefill_tokens=self.prefill_tokens,
                tokens_from_device=self.tokens_from_device,
                stall_s=memory.compute.stall_s,
                **self._below(),
                **self.times.expert_counts(),
            ),
            times=self.times.layer_times(),
            cached=self._cached(),
        )

    def _kv_extents(self) -> tuple[int, int, int]:
        """(backed extents, extents in use, usable blocks)."""
        blocks = self.kv_cache_manager.block_pool.num_gpu_blocks
        used = blocks - self.kv_cache_manager.block_pool.get_num_free_blocks()
        per_extent = self.shape.extent_blocks
        return ceil_div(blocks, per_extent), ceil_div(used, per_extent), blocks

    def _waiting_count(self) -> int:
        return int(self.get_request_counts()[1])

    def _demand(self) -> Demand:
        return Demand()

    def _cached(self) -> Cached:
        return Cached()

    def _below(self) -> dict[str, int]:
        """What `Counters` has of blocks below the device."""
        return {}


class ElasticMixin(TieredMixin, HoldingMixin, ObservingMixin):
    """Grows before it preempts, and gives KV memory back behind the fence."""

    def _prepare(self) -> None:
        kv = self.memory.kv
        pool = self.kv_cache_manager.block_pool
        if kv is None:  # vLLM's null block is no memory
            book = ExtentBook(0, 1, 0)
        else:
            per_extent = kv.extents.blocks_per_extent
            extents = pool.num_gpu_blocks // per_extent
            book = ExtentBook(extents, per_extent, len(kv.extents.mapped))
        self.pool = ElasticBlocks(pool, book, present.content())
        pace = Pace(self.settings.move_s, self._steps_soon)
        self.reconciler = Reconciler(
            self.memory,
            self.pool,
            self.fence,
            pace=pace,
            demote=self._demote,
            may_demote=self._may_demote,
        )
        self._prepare_to_hold(self.settings.hold_s, self._recalls, self._copied)
        self.wants = Wants(
            self.groups,
            self.shape.extent_blocks,
            self.settings.lookahead_steps,
            self.settings.headroom_extents,
            self.settings.kept,
            self.growth_hold,
        )
        self._look_below()

    # -- vLLM's hooks -------------------------------------------------------------------

    def _schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._let_go()
        self._spill()
        self._reconcile()
        if self.settings.kept != "nothing":
            # vLLM leaves so many blocks free when it admits a waiting request.
            self.kv_cache_manager.watermark_blocks = self._left_free()
        return super()._schedule(*args, **kwargs)

    def _left_free(self) -> int:
        reconciler = self.reconciler
        usable = reconciler.holding.usable_extents
        return self.wants.left_free(
            len(self.running), usable, reconciler.open_extents, self._demand
        )

    def _processed(self) -> None:
        self._let_go()
        if self.pool.book.retiring or not self.running:
            self._reconcile()

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's. With the last request goes the reason to move memory in small parts."""
        with self.mailbox.hold():
            finished = super().finish_requests(*args, **kwargs)
            if not self.running:
                self._reconcile()
            return finished

    def _recalls(self) -> bool:
        """True if requests must go. Blocks that copies hold go before they do."""
        recalls = partial(self.reconciler.recalls, len(self.running))
        return recalls() and (not self._copied() or recalls())

    # -- control messages ---------------------------------------------------------------

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Allotment) and self.reconciler.aim(message):
            self.growth_hold.answered()
        elif isinstance(message, Refusal):
            self.growth_hold.refused()
        super()._handle(message)

    def _steps_soon(self) -> bool:
        """Whether requests wait for a step, and the engine has the turn to make it."""
        return bool(self.running or self.waiting) and self.turn.may_step(self._begun())

    def _reconcile(self) -> None:
        if not self.reconciler.reconciled and self.reconciler.reconcile():
            self.reporter.now()

    # -- state --------------------------------------------------------------------------

    def _kv_extents(self) -> tuple[int, int, int]:
        book = self.pool.book
        return book.backed_extents(), book.busy_extents(), book.usable_blocks

    def _cached(self) -> Cached:
        pool = self.pool
        return Cached(pool.idle_cached_blocks(), pool.blocks_again, self.tiers is not None)

    def _demand(self) -> Demand:
        pool, running = self.pool, len(self.running)
        idle = pool.num_free_blocks + pool.only_pinned()
        starting = self.groups.to_start(self._to_compute(), self.max_num_running_reqs - running)
        return self.wants.demand(max(0, pool.book.usable_blocks - 1 - idle), running, starting)


class MirageScheduler(ElasticMixin, Scheduler):
    """Elastic, one step at a time."""


class MirageAsyncScheduler(ElasticMixin, AsyncScheduler):
    """Elastic, with two steps in flight."""


class ObservedScheduler(ObservingMixin, Scheduler):
    """vLLM's own, observed."""


class ObservedAsyncScheduler(ObservingMixin, AsyncScheduler):
    """vLLM's own asynchronous one, observed."""


def make_scheduler(vllm_config: Any, **kwargs: Any) -> Any:
    """For ``--scheduler-cls``: the base that vLLM would pick, with the policy's mixin."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    if runtime.worker().settings.policy is Policy.STATIC:
        return (ObservedAsyncScheduler if asynchronous else ObservedScheduler)(
            vllm_config, **kwargs
        )
    return (MirageAsyncScheduler if asynchronous else MirageScheduler)(vllm_config, **kwargs)
