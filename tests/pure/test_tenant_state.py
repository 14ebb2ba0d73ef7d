"""Reports of engines as the controller's store keeps them: total wishes, recent
maxima, activity.
"""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from mirage.control.profiled import Profiled
from mirage.control.tenant_state import MetadataStore
from mirage.control.windows import RecentMax
from mirage.protocol import Allotment, ModelShape, Report
from scheduler.clocked import Clocked
from scheduler.tenants import Activity, Tenant

pytestmark = pytest.mark.pure

SHAPE = ModelShape(
    layers=12,
    layer_bytes=100,
    fixed_bytes=0,
    extent_bytes=50,
    extent_blocks=4,
    block_tokens=16,
    max_extents=100,
    min_extents=2,
    movable_layers=12,
)


def report(revision: int = 0, used: int = 0, usable: int = 10, **more: float) -> Report:
    fields = {
        "revision": revision,
        "holds_turn": True,
        "held_bytes": 0,
        "layers_remapped": 0,
        "stream_slots": 1,
        "kv_extents": usable,
        "kv_used_extents": used,
        "kv_usable_extents": max(used, usable),
    }
    return Report(**(fields | more))


def store(**settings: object) -> MetadataStore:
    tenants = [Tenant("a", 50), Tenant("b", 50)]
    made = MetadataStore(tenants, **({"cooldown_s": 1.0} | settings))
    for name in "ba":
        made.joined(name, SHAPE, 7)
    return made


# -- recent maxima ----------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=12),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_recent_max_is_the_largest_value_in_force(steps, span, later) -> None:
    window, now, history = RecentMax(span), 0, []
    for wait, value in steps:
        now += wait
        window.add(value, now)
        history.append((now, value))
    now += later
    ends = [t for t, _ in history[1:]] + [inf]
    in_force = [v for (_, v), end in zip(history, ends, strict=True) if end + span > now]
    at = window.at(now)
    largest, until = at.value, at.valid_until
    assert largest == max(in_force)
    if until != inf:
        assert until > now
        assert window.at(until).value < max(in_force)


def test_recent_max_of_nothing_is_zero() -> None:
    assert RecentMax(1.0).at(5.0) == Clocked(0, inf)


# -- activity ---------------------------------------------------------------------------


def test_a_tenant_is_busy_up_to_the_report_that_says_otherwise() -> None:
    seen = Activity().seen(True, 1.0).seen(False, 5.0)
    assert seen == Activity(False, 5.0)
    assert seen.seen(False, 9.0).last_busy == 5.0
    assert seen.at(5.9, 1.0) == Clocked(True, 6.0)
    assert seen.at(6.0, 1.0) == Clocked(False, inf)
    assert Activity().at(0.0, 1.0) == Clocked(False, inf)
    assert Activity(True, 5.0).at(9.0, 1.0) == Clocked(True, inf)


def test_work_makes_active_and_lingers() -> None:
    made = store()
    made.reported("a", report(running=1), 1.0)
    made.reported("b", report(waiting=1), 1.0)
    made.reported("b", report(), 2.0)
    assert [t.active for t in made.snapshot(2.5).tenants] == [True, True]
    assert made.valid_until(2.5) == 3.0
    assert [t.active for t in made.snapshot(3.0).tenants] == [True, False]


def test_who_is_busy_is_as_recent_as_any_other_that_is() -> None:
    made = store()
    made.reported("a", report(running=1), 1.0)
    made.reported("b", report(running=1), 2.0)
    assert [t.last_busy for t in made.snapshot(2.0).tenants] == [inf, inf]
    made.reported("b", report(), 3.0)
    assert [t.last_busy for t in made.snapshot(3.0).tenants] == [inf, 3.0]


def test_under_turns_only_the_holder_is_active_and_wants() -> None:
    made = store(temporal=True)
    for name in "ab":
        made.reported(name, report(used=3, growth_extents=12, admission_extents=12, running=1), 1.0)
    made.turn("b", 2.0)
    a, b = made.snapshot(2.0).tenants
    assert (a.active, b.active) == (False, True)
    assert (a.used_extents, a.growth_extents, a.admission_extents) == (3, 3, 3)
    assert (b.used_extents, b.growth_extents, b.admission_extents) == (3, 12, 12)
    made.turn("a", 5.0)
    a, b = made.snapshot(5.0).tenants
    assert (a.active, b.active, b.last_busy) == (True, False, 5.0)
    made.turn(None, 6.0)
    assert made.snapshot(6.0).tenants[0].active


# -- snapshots --------------------------------------------------------------------------


def test_a_snapshot_is_frozen_and_ordered() -> None:
    taken = store().snapshot(0.0)
    assert [t.name for t in taken.tenants] == ["a", "b"]
    with pytest.raises(AttributeError, match="immutable"):
        taken.tenants[0].active = True
    assert taken.tenants[0].report.held_bytes == 7
    assert taken.tenants[0].allotment is None


def test_a_later_change_of_a_report_does_not_reach_the_store() -> None:
    made, sent = store(), report(used=3)
    made.reported("a", sent, 0.0)
    sent.kv_used_extents = 99
    assert made.snapshot(0.0).tenants[0].report.kv_used_extents == 3


def test_allotments_are_pending_until_seen() -> None:
    made = store()
    several = [Allotment(r, 0, 1, 10 + r, 0) for r in (1, 2, 3)]
    for allotment in several:
        made.sent("a", allotment)
    made.reported("a", report(revision=2), 0.0)
    a = made.snapshot(0.0).tenants[0]
    assert (a.allotment, a.pending) == (several[2], (several[2],))
    made.reported("a", report(revision=3), 0.0)
    a = made.snapshot(0.0).tenants[0]
    assert (a.allotment, a.pending) == (several[2], ())


def test_layers_told_to_go_count_as_away() -> None:
    made = store()
    made.sent("a", Allotment(1, 4, 2, 10, 0))
    assert made.snapshot(0.0).tenants[0].layers_out == 4
    made.reported("a", report(layers_remapped=6), 0.0)
    assert made.snapshot(0.0).tenants[0].layers_out == 6


def test_peaks_linger_and_the_lost_leave_nothing() -> None:
    made = store()
    made.reported("a", report(used=9, growth_extents=10, running=1, layer_compute_s=0.5), 1.0)
    made.reported("a", report(used=2, growth_extents=3, running=1, layer_compute_s=0.1), 2.0)
    a = made.snapshot(2.5).tenants[0]
    assert (a.peak_extents, a.peak_compute_s) == (10, 0.5)
    assert made.valid_until(2.5) == 3.0
    a = made.snapshot(3.0).tenants[0]
    assert (a.peak_extents, a.peak_compute_s) == (3, 0.1)
    made.lost("a")
    made.lost("a")
    assert [t.name for t in made.snapshot(3.0).tenants] == ["b"]


def test_a_mean_step_is_one_with_requests_that_wait_once_some_did() -> None:
    made = store()

    def mean(compute_s: float, waiting: int, running: int = 1) -> float:
        asks = report(used=2, running=running, waiting=waiting, layer_compute_s=compute_s)
        made.reported("a", asks, 0.0)
        return made.snapshot(0.0).tenants[0].mean_compute_s

    assert mean(0.1, waiting=0) == pytest.approx(0.1)
    assert mean(0.3, waiting=0) == pytest.approx(0.2)
    assert mean(0.5, waiting=4) == pytest.approx(0.5), "small batches before say nothing"
    assert mean(0.1, waiting=0) == mean(0.1, waiting=4, running=0) == pytest.approx(0.5)
    assert mean(0.7, waiting=1) == pytest.approx(0.6)
    assert made.snapshot(0.0).tenants[0].staying_part == pytest.approx(0.1 / 0.6)


def test_waiting_requests_linger_only_where_they_are_remapped_for() -> None:
    for serves, peak in ((True, 12), (False, 2)):
        made = store(for_admission=serves)
        asks = report(used=2, running=1, growth_extents=2, admission_extents=12, waiting=1)
        made.reported("a", asks, 0.0)
        assert made.snapshot(0.0).tenants[0].peak_extents == peak


# -- before the first step ------------------------------------------------------------------


def test_what_a_profile_says_holds_until_it_is_measured() -> None:
    known = store(profiled={"a": Profiled(step_s=0.024, token_s=1e-4)})
    before = {t.name: t for t in known.snapshot(0).tenants}
    assert before["a"].report.layer_compute_s == pytest.approx(0.002)
    assert before["a"].least_compute_s == before["a"].peak_compute_s == pytest.approx(0.002)
    assert before["a"].report.token_s == 1e-4
    assert before["b"].report.layer_compute_s == before["b"].least_compute_s == 0
    known.reported("a", report(1, running=1, layer_compute_s=0.001), 1)
    now = known.snapshot(1).tenants[0]
    assert now.report.layer_compute_s == now.least_compute_s == now.peak_compute_s == 0.001
    assert now.report.token_s == 1e-4  # steps did not differ yet
    known.reported("a", report(1, running=1, layer_compute_s=0.001, token_s=3e-4), 2)
    assert known.snapshot(2).tenants[0].report.token_s == 3e-4


def test_an_engine_that_starts_anew_begins_with_its_profile_again() -> None:
    known = store(profiled={"a": Profiled(step_s=0.024)})
    known.reported("a", report(layer_compute_s=0.5), 1)
    known.joined("a", SHAPE, 7)
    assert known.snapshot(2).tenants[0].least_compute_s == pytest.approx(0.002)


# -- time -------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # seconds that pass
        st.sampled_from(["report", "sent", "turn"]),
        st.sampled_from("ab"),
        st.integers(0, 9),  # extents
        st.booleans(),  # busy
        st.sampled_from([0.0, 0.25, 0.5]),  # T_c
    ),
    max_size=12,
)


def happens(made: MetadataStore, event: tuple, number: int, now: float) -> None:
    _, what, name, extents, busy, compute_s = event
    if what == "turn":
        made.turn(name, now)
    elif what == "sent":
        made.sent(name, Allotment(number, 0, 1, extents, 0))
    else:
        fields = {"growth_extents": extents, "running": int(busy), "layer_compute_s": compute_s}
        made.reported(name, report(number, used=extents // 2, **fields), now)


def seen(made: MetadataStore, now: float) -> list[dict]:
    return [asdict(tenant) for tenant in made.snapshot(now).tenants]


@given(EVENTS, st.booleans(), st.sampled_from([0.0, 1.0, 2.5]))
def test_what_is_kept_is_what_would_be_made_anew(events: list, temporal: bool, cooldown_s: float):
    """A store that is asked after each event gives the same answers as a new one that is told all
    events at once. An answer stays valid exactly until `valid_until`.
    """
    made = store(temporal=temporal, cooldown_s=cooldown_s)
    now = 0.0
    for number, event in enumerate(events, 1):
        for _ in range(event[0] * 2):
            until = made.valid_until(now)
            before, now = seen(made, now), now + 0.5
            anew = store(temporal=temporal, cooldown_s=cooldown_s)
            then = 0.0
            for past, each in enumerate(events[: number - 1], 1):
                happens(anew, each, past, then := then + each[0])
            assert seen(made, now) == seen(anew, now)
            if now < until:
                assert seen(made, now) == before
            elif now == until:
                assert seen(made, now) != before, "it says when it changes"
        happens(made, event, number, now)


# -- pauses -----------------------------------------------------------------------------


def pause(known: MetadataStore, now: float) -> float:
    return next(t.longest_pause_s for t in known.snapshot(now).tenants if t.name == "a")


def test_the_longest_pause_between_two_times_of_work_is_known() -> None:
    known = store()
    for now, running in ((5.0, 1), (6.0, 0), (7.0, 0), (9.0, 1), (10.0, 0), (11.0, 1)):
        known.reported("a", report(running=running), now)
    assert pause(known, 11.0) == 3.0


def test_what_is_before_the_first_request_or_goes_on_is_no_pause() -> None:
    known = store()
    known.reported("a", report(), 1.0)
    known.reported("a", report(running=1), 5.0)
    known.reported("a", report(), 6.0)
    known.reported("a", report(), 50.0)
    assert pause(known, 50.0) == 0.0


def test_an_old_pause_is_forgotten() -> None:
    known = store()
    for now, running in ((0.0, 1), (1.0, 0), (101.0, 1), (102.0, 0), (103.0, 1)):
        known.reported("a", report(running=running), now)
    assert pause(known, 103.0) == 100.0
    known.reported("a", report(running=0), 800.0)
    known.reported("a", report(running=1), 801.0)
    assert pause(known, 801.0) == 1.0


def test_a_tenant_lacked_memory_as_its_last_turn_ended_whatever_comes_meanwhile() -> None:
    """A tenant counts as having lacked memory if requests waited for it in its last turn. Requests
    that wait only for the turn do not make it so.
    """
    made = store(temporal=True)
    short = {"waiting": 3, "admission_extents": 14}

    def lacked(**told: float) -> bool:
        made.reported("a", report(**told), 0.0)
        return next(t.lacked for t in made.snapshot(0.0).tenants if t.name == "a")

    assert not lacked(holds_turn=False, **short)
    assert lacked(**short)
    assert lacked(holds_turn=False)
    assert not lacked(waiting=3, admission_extents=10)


# -- tokens computed again --------------------------------------------------------------


def test_the_part_of_the_time_in_which_tokens_are_computed_again() -> None:
    """256 tokens in each second, of a millisecond each. Those before the first report are of an
    engine that has run under another server.
    """
    made = store()
    for second in range(600):
        seen = report(running=5, token_s=1e-3, recomputed_tokens=1000 + 256 * second)
        made.reported("a", seen, float(second))
    a, b = made.snapshot(600.0).tenants
    assert a.recomputed_part == pytest.approx(0.256, rel=0.01)
    assert b.recomputed_part == 0.0
    made.reported("a", report(running=5, recomputed_tokens=1000 + 256 * 600), 600.0)
    assert made.snapshot(600.0).tenants[0].recomputed_part == 0.0  # the time is unknown


def test_no_time_goes_into_preemptions_that_have_ended() -> None:
    made = store()
    for second, tokens in enumerate([0, 100_000, *[100_000] * 600]):
        made.reported("a", report(token_s=1e-3, recomputed_tokens=tokens), float(second))
    assert made.snapshot(602.0).tenants[0].recomputed_part < 1e-4
