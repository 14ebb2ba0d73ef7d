"""Requests that neither the API server nor the core has are lost, and no others."""

from __future__ import annotations

import pytest

from mirage.control.lost_requests import IDLE_S, LostRequests

pytestmark = pytest.mark.pure

HANG_S = 30.0


def first_lost(seen: LostRequests[str], until: float, worked: dict[float, float]) -> float | None:
    """Second at which the request "r", sent at 0 s, counts as lost, or None. `worked` has spans in
    which the core had requests or the API server computed: the end by the beginning.
    """
    now, last = 0.0, -100.0
    while now < until:
        for begin, end in worked.items():
            if begin <= now:
                last = max(last, min(now, end))
        if seen.look(now, ["r"], last):
            return now
        now += 1.0
    return None


def test_one_that_nobody_has_is_lost_after_so_long() -> None:
    assert first_lost(LostRequests(HANG_S), 100, {}) == HANG_S


def test_one_that_is_computed_is_not_lost_however_long() -> None:
    assert first_lost(LostRequests(HANG_S), 5000, {0.0: 5000.0}) is None


def test_one_that_is_prepared_for_long_and_then_computed_is_not_lost() -> None:
    """A request spends 25 s on fetches and 20 s on rendering in the API server, then 60 s in the
    core. It never counts as lost.
    """
    assert first_lost(LostRequests(HANG_S), 108, {25.0: 105.0}) is None


def test_an_answer_has_time_to_come_when_the_core_is_done() -> None:
    seen = LostRequests[str](HANG_S)
    assert first_lost(seen, 600 + HANG_S, {0.0: 600.0}) is None
    assert seen.look(600 + HANG_S, ["r"], 600.0) == ["r"]


def test_one_that_was_not_there_is_lost_though_the_core_works_again_and_again() -> None:
    """A request was lost while the core works for others. Work without a pause hides the loss;
    moments without work reveal it.
    """
    without_end = {0.0: 25.0} | {4.0 * n: 4.0 * n + 3.0 for n in range(8, 100)}
    assert first_lost(LostRequests(HANG_S), 400, without_end) is None
    assert first_lost(LostRequests(HANG_S), 400, {0.0: 25.0, 40.0: 400.0}) is None
    moments = {0.0: 25.0, 40.0: 50.0, 54.0: 65.0, 69.0: 400.0}
    assert first_lost(LostRequests(HANG_S), 400, moments) == 68.0, "nothing since 30"


def test_a_byte_is_news() -> None:
    seen = LostRequests[tuple[str, int]](HANG_S)
    for now in range(200):
        assert seen.look(float(now), [("r", now // 20)], 0.0) == []
    assert not seen.estranged


def test_two_of_them_are_the_engines_fault() -> None:
    seen = LostRequests[str](HANG_S)
    for now, found in ((0.0, []), (HANG_S, ["a"])):
        assert seen.look(now, ["a"], -IDLE_S) == found
    assert not seen.estranged
    for now, found in ((40.0, []), (40.0 + HANG_S, ["b"])):
        assert seen.look(now, ["b"], -IDLE_S) == found
    assert seen.estranged
