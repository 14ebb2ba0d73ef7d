"""vLLM's scheduler, which asks for memory before it preempts.

There is one class for each scheduler of vLLM's. A policy only decides which `RequestRoom` a
scheduler has. `schedule()` is a step, in the order in which docs/architecture.md describes it.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from mirage.control.engine.fence import Fence
from mirage.control.step_periods import StepPeriods
from mirage.control.turn_taking import Admits
from mirage.engine import grammars, runtime
from mirage.engine.agent import Agent
from mirage.engine.conversation import Conversation
from mirage.engine.firststep import FirstStep, lacks_input
from mirage.engine.kvgroups import kv_groups
from mirage.engine.life_signs import LifeSigns
from mirage.engine.mixed import name_by_mask
from mirage.engine.queues import EngineQueues
from mirage.engine.reports import EngineReports
from mirage.engine.room import RoomMaker
from mirage.engine.step_bounds import StepBounds
from mirage.engine.step_counts import StepCounts
from mirage.engine.turn import EngineTurn
from mirage.protocol import Alive, Allotment, Refusal, Report, ToEngine, Turn

logger = logging.getLogger("mirage.engine.scheduler")

TURN_POLL_S = 0.05
"""Longest wait in seconds while another engine has the turn; then vLLM handles requests and
signals."""
HOLD_POLL_S = 0.005
"""Longest pause in seconds of an engine that has nothing to run until memory comes; a message ends
it."""
TIER_POLL_S = 0.001
"""Longest pause in seconds of an engine in which every request waits for blocks from below the
device; a message ends it."""
PAUSES = {
    Admits.ALL: PauseState.UNPAUSED,
    Admits.PREEMPTED: PauseState.UNPAUSED,  # others are skipped one by one
    Admits.RUNNING: PauseState.PAUSED_NEW,
    Admits.NONE: PauseState.PAUSED_ALL,
}


class MirageScheduler(Scheduler):
    """vLLM's scheduler, with one step in flight."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        self.bounds = StepBounds()
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        self.worker = worker = runtime.worker()
        self.settings, self.mailbox = worker.settings, worker.mailbox
        self.groups = kv_groups(vllm_config, kv_cache_config.kv_cache_groups)
        self.shape = worker.shape(kv_cache_config, self.groups)
        self.agent = self._connect()
        self.queues, self.fence = EngineQueues(self), Fence()
        self.turn = EngineTurn(self.queues, self.fence, temporal=self.settings.temporal)
        self.counts = StepCounts(self.fence)
        self.periods = StepPeriods()
        room = RoomMaker(
            worker,
            self.kv_cache_manager,
            self.shape,
            self.groups,
            queues=self.queues,
            turn=self.turn,
            fence=self.fence,
            bounds=self.bounds,
            counts=self.counts,
            agent=self.agent,
        )
        # What one step may write: its tokens, and a block that each request begins.
        most = self.max_num_scheduled_tokens + self.max_num_running_reqs
        self.kv, self.tiers, self.hold = room.make(most)
        reports = EngineReports(
            worker,
            self.shape,
            kv=self.kv,
            queues=self.queues,
            tiers=self.tiers,
            counts=self.counts,
            periods=self.periods,
        )
        self.server = Conversation(self.agent, reports, self.turn)
        self.signs = LifeSigns(self.mailbox, self.get_request_counts)
        self.first: FirstStep | None = None
        """Engine's own first requests, until they have been computed; nothing is counted before.
        None afterwards."""
        self.mailbox.read_by(self._handle)
        self.server.begin(self.settings.tenant, self.shape, self.signs.pulse, self.fills_alone)
        if self.settings.first_step:
            self._begin_first(vllm_config)

    def _connect(self) -> Agent | None:
        path = self.settings.control
        return None if path is None else Agent(path, self.mailbox)

    # -- a step -------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule as vLLM does, with the steps before and after it that "A step" in
        docs/architecture.md lists."""
        self.signs.calls += 1
        with self.mailbox.hold():
            self._await_turn()
            self.tiers.harvest()
            self.kv.spill()
            self._reconcile()
            self.kv.leave_free()
            self.hold.begin_step()
            with self.bounds.of_step(self.turn.admits()):
                output = super().schedule(*args, **kwargs)
            if self.hold.end_step():
                self.server.report_now()
            if self.hold.blocked:
                self.queues.make_way()
            if output.total_num_scheduled_tokens:
                self.fence.scheduled += 1
                self.worker.planned = True
                self.periods.begins(time.monotonic())
            else:
                self._rest()
            self.counts.scheduled(output, self.requests, self.tiers.loaded_tokens)
            self.server.report_if_due()
            return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Update as vLLM does, and note that one more step has been processed."""
        with self.mailbox.hold():
            if tokens := scheduler_output.total_num_scheduled_tokens:
                self.fence.processed += 1
            asked = grammars.asked(self, scheduler_output)
            out = super().update_from_output(scheduler_output, model_runner_output)
            for told in out.values() if asked else ():
                grammars.tell(told.outputs, asked, self.structured_output_manager)
            self.counts.computed(scheduler_output, model_runner_output)
            if self.first is not None and self.first.processed(out):
                self._end_first()
            self.tiers.harvest()
            if self.kv.retiring or not self.running:
                self._reconcile()
            self._time_step(tokens)
            self.server.report_if_due(urgent=self.queues.idle)
            return out

    def _time_step(self, tokens: int) -> None:
        """Note the time of a step that has ended; steps of the engine's own first requests are left
        out."""
        if tokens and not self.counts.paused:
            self.periods.ends(tokens, time.monotonic())
        if self.queues.idle or self.counts.paused:
            self.periods.rests()

    def _await_turn(self) -> None:
        # Once, not until it comes: vLLM's loop must go on to notice new and aborted requests.
        if self.turn.stopped:
            self.periods.rests()
            self.kv.spill()
            self._reconcile()
            self.server.report_if_due()
            self.mailbox.wait(TURN_POLL_S)

    def _reconcile(self) -> None:
        if self.kv.reconcile():
            self.server.report_now()

    def _rest(self) -> None:
        """Note that this schedule() begins no step. If a request is held for memory, or blocks are
        awaited from or for the pool, wait some milliseconds for a message."""
        self.periods.rests()
        if self.hold.held:
            self.mailbox.wait(HOLD_POLL_S)
        if self.tiers.awaited:
            self.mailbox.wait(TIER_POLL_S)

    # -- what vLLM asks within its schedule() -------------------------------------------

    @property
    def _pause_state(self) -> PauseState:
        """Pause state that vLLM reads: its own, or the bounds of the step that is being scheduled
        if these are stricter.

        vLLM reads it before it schedules running requests, and before it admits waiting ones.
        """
        held = PauseState.PAUSED_NEW if self.bounds.held else PauseState.UNPAUSED
        return max(self._paused, PAUSES[self.bounds.admits], held)

    @_pause_state.setter
    def _pause_state(self, state: PauseState) -> None:
        self._paused = state

    def _request_blocks_can_be_freed(self, request: Any) -> bool:
        return not self.bounds.held and bool(super()._request_blocks_can_be_freed(request))

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        if self.bounds.admits is Admits.PREEMPTED and request.status is RequestStatus.WAITING:
            return False  # vLLM skips it in this step
        return bool(super()._handle_blocked_waiting_request(request))

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self.counts.preempted(request)
        self.kv.preempted(request)
        super()._preempt_request(request, *args, **kwargs)

    # -- what vLLM calls between steps, while the agent's thread may act on an idle engine ----

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Add a request as vLLM does, while this thread holds the engine (`Mailbox.hold`).

        Before that, the KV blocks of a prompt with embeddings get names other than vLLM's
        (`name_by_mask`), because vLLM's are the same for different prompts.
        """
        name_by_mask(request)
        with self.mailbox.hold():
            return super().add_request(request, *args, **kwargs)

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Finish requests as vLLM does. If none runs afterwards, make a round towards the allotment
        now: it delays no step."""
        with self.mailbox.hold():
            finished = super().finish_requests(*args, **kwargs)
            if not self.running:
                self._reconcile()
            return finished

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Reset as vLLM does, after waiting for copies: vLLM would take a block that is copied for
        one in use."""
        with self.mailbox.hold():
            self.tiers.copied()
            return super().reset_prefix_cache(*args, **kwargs)

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Make statistics as vLLM does, while this thread holds the engine (`Mailbox.hold`)."""
        with self.mailbox.hold():
            return super().make_stats(*args, **kwargs)

    def shutdown(self) -> None:
        """Shut down as vLLM does, and end the conversation with the control server.

        vLLM calls it in a ``finally``, so that an exception that ends the core is visible here.
        """
        self.server.end()
        super().shutdown()

    # -- the control server, with the engine held ---------------------------------------

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Alive():  # more may be possible by now, and no step may be due
                self.tiers.leave_if_lost()
                self._reconcile()
                return
            case Turn():
                self.turn.told(message)
            case Allotment():
                if self.kv.aim(message):
                    self.hold.answered()
                self.server.obeyed(message)
            case Refusal():
                self.hold.refused()
        self.server.report_now()

    def fills_alone(self) -> bool:
        """True if an engine that woke still lacks memory, and no request causes steps that bring
        it.

        Any thread may ask.
        """
        return self.kv.fills and self.queues.idle and not self.mailbox.is_wanted

    def report(self) -> Report:
        """Return a report of the present state."""
        return self.server.report()

    # -- the engine's own request -------------------------------------------------------

    def _begin_first(self, vllm_config: Any) -> None:
        if (why := lacks_input(vllm_config.model_config)) is not None:
            logger.warning("no first step is computed before requests are: %s", why)
            self._end_first()
            return
        self.first = FirstStep(vllm_config, self.worker.tasks, self.hash_block_size)
        self.counts.paused = self.signs.begins_alone = True
        self.worker.times_steps(False)  # its steps say nothing of T_c
        for request in self.first.requests:
            self.add_request(request)

    def _end_first(self) -> None:
        """Count steps from now on, and report to the control server that the first step was
        computed."""
        self.first = None
        self.worker.times_steps(True)
        self.signs.begins_alone = False
        self.counts.begin()
        self.server.stepped(*self.worker.memory_info())


class MirageAsyncScheduler(MirageScheduler, AsyncScheduler):
    """vLLM's asynchronous scheduler, with two steps in flight."""


def make_scheduler(vllm_config: Any, **kwargs: Any) -> Any:
    """Return the scheduler for ``--scheduler-cls``, over the class that vLLM would choose."""
    if vllm_config.scheduler_config.async_scheduling:
        return MirageAsyncScheduler(vllm_config, **kwargs)
    return MirageScheduler(vllm_config, **kwargs)
