"""Bounds of one step that our scheduler sets in vLLM's, in force in that step alone."""

from __future__ import annotations

from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from no_device import BLOCKS, computed, made, step
from vllm import SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from mirage.control.turn_taking import Admits
from mirage.engine import scheduler
from mirage.engine.scheduler import MirageAsyncScheduler, MirageScheduler
from mirage.protocol import Turn

pytestmark = pytest.mark.engine


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scheduler in turns that has the turn, with one running request and one waiting."""
    core = made(tmp_path, monkeypatch, temporal=True)
    core.mailbox.post(Turn(True))
    core.add_request(request("a"))
    step(core)
    core.add_request(request("b"))
    assert core.get_request_counts() == (1, 1)
    return core


def request(name: str) -> Request:
    return Request(name, [5, 6, 7], SamplingParams(max_tokens=20, ignore_eos=True), None)


def scheduled(core: Any) -> set[str]:
    """Names of the requests in the next step, which is answered too."""
    output = core.schedule()
    computed(core, output)
    return set(output.num_scheduled_tokens)


def test_each_of_our_classes_is_one_over_one_of_vllms() -> None:
    ours = [each for each in MirageAsyncScheduler.__mro__ if each.__module__.startswith("mirage.")]
    assert ours == [MirageAsyncScheduler, MirageScheduler]
    assert MirageScheduler.__bases__ == (Scheduler,)


def test_a_turn_bounds_each_step(core: Any) -> None:
    assert scheduled(core) == {"a", "b"}
    core.add_request(request("c"))
    core.mailbox.post(Turn(False, drain=True))
    assert scheduled(core) == {"a", "b"}, "what has begun goes on, and no other begins"
    core._preempt_request(core.running.pop(), 0.0)
    assert scheduled(core) == {"a", "b"}, "who ran before is begun"
    core.mailbox.post(Turn(False))
    assert scheduled(core) == set()
    core.mailbox.post(Turn(True))
    assert scheduled(core) == {"a", "b", "c"}


@pytest.mark.parametrize("state", PauseState)
def test_bounds_of_a_step_leave_vllms_pause_as_it_is(core: Any, state: PauseState) -> None:
    core.set_pause_state(state)
    core.mailbox.post(Turn(False, drain=True))
    core.schedule()
    assert core.pause_state is state
    core.set_pause_state(PauseState.UNPAUSED)
    assert core.get_num_unfinished_requests() == 2


def test_a_paused_engine_does_not_step_without_its_turn(core: Any) -> None:
    core.set_pause_state(PauseState.PAUSED_NEW)
    assert scheduled(core) == {"a"}
    core.mailbox.post(Turn(False))
    assert scheduled(core) == set()


@pytest.mark.parametrize("draining", [False, True])
def test_a_schedule_that_fails_leaves_no_bounds(
    core: Any, monkeypatch: pytest.MonkeyPatch, draining: bool
) -> None:
    seen = []

    def failing(*args: Any, **kwargs: Any) -> None:
        core.hold.lacks(1, 0)
        seen.append((core.bounds.held, core._pause_state))
        raise ZeroDivisionError

    core.mailbox.post(Turn(not draining, drain=draining))
    with monkeypatch.context() as patch:
        patch.setattr(core.kv_cache_manager, "allocate_slots", failing)
        with pytest.raises(ZeroDivisionError):
            core.schedule()
    assert seen == [(True, PauseState.PAUSED_NEW)]
    assert (core.bounds.admits, core.bounds.held) == (Admits.ALL, False)
    assert core.pause_state is PauseState.UNPAUSED
    assert core.get_num_unfinished_requests() == 2
    core.mailbox.post(Turn(True))
    assert scheduled(core) == {"a", "b"}


def test_a_held_request_keeps_others_out_and_nobody_is_preempted(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(request: Any, *args: Any, **kwargs: Any) -> None:
        core.hold.lacks(1, BLOCKS)

    core.agent.heard = inf
    with monkeypatch.context() as patch:
        patch.setattr(core.kv_cache_manager, "allocate_slots", lacking)
        assert scheduled(core) == set()
    assert core.get_request_counts() == (1, 1) and not core.counts.preemptions
    assert core.agent.said[-1].running == 1
    assert scheduled(core) == {"a", "b"}, "in the next step it finds blocks"


def test_a_report_has_the_time_from_step_to_step_without_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, clock = made(tmp_path, monkeypatch, temporal=True), SimpleNamespace(now=0.0)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: clock.now))
    core.mailbox.post(Turn(True))

    def steps(count: int) -> None:
        for _ in range(count):
            output = core.schedule()
            clock.now += 0.25
            computed(core, output)

    assert core.report().step_s == 0.0
    core.add_request(request("a"))
    steps(3)
    clock.now += 0.5  # between two steps, which are not idle
    steps(1)
    assert core.report().step_s == pytest.approx((4 * 0.25 + 0.5) / 4, rel=0.01)
    core.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    core.schedule()
    clock.now += 100.0
    core.add_request(request("b"))
    core.mailbox.post(Turn(False))
    core.schedule()
    clock.now += 100.0
    core.mailbox.post(Turn(True))
    steps(1)
    assert core.report().step_s == pytest.approx((5 * 0.25 + 0.5) / 5, rel=0.01)
