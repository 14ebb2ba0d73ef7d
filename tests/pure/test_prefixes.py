"""Cached prefixes are lent before layers only where computing them again costs less."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from test_planner import REMAP, SHARE, plan, planned, tenant

from mirage.config import Policy
from mirage.control.prefixes import lending
from mirage.control.spilling import TurnLengths
from mirage.control.tenant_state import AGAIN_S, RecentRate, TenantSnapshot

pytestmark = pytest.mark.pure

FAST, SLOW = (0.01, 1.0), (100.0, 1.0)
"""T_T and T_c: 10,000 bytes a second over the link, and one."""


def caching(
    t: TenantSnapshot, blocks: int, again_s: float, token_s: float = 0.1, **more: Any
) -> TenantSnapshot:
    """Copy of a tenant with `blocks` idle cached blocks of 50 bytes and 16 tokens, each one extent.
    `again_s` of them are found again per second; to compute a token takes `token_s`.
    """
    used = t.report.kv_used_extents
    report = structs.replace(
        t.report, kv_used_blocks=used, kv_cached_blocks=blocks, token_s=token_s, **more
    )
    return structs.replace(t, report=report, again_blocks_s=again_s)


def pair(again_s: float = 1.0, times: tuple[float, float] = FAST, **more: Any) -> Any:
    """`a` wants four extents beyond its share. `b` uses three extents, and has seven cached blocks,
    `again_s` of which are found again per second.
    """
    a = tenant("a", 10, 4, times=times)
    return [a, caching(tenant("b", 3, times=times), 7, again_s, **more)]


def test_prefixes_that_are_asked_for_stay_and_layers_that_hide_go() -> None:
    assert planned(*pair()) == {"a": (2, 14), "b": (0, 10)}


def test_prefixes_that_nobody_asks_for_go_first() -> None:
    assert planned(*pair(again_s=0.0)) == {"a": (0, 14), "b": (0, 6)}
    assert planned(*pair(), remap=REMAP.model_copy(update={"keep_prefixes": False}))["a"][0] == 0


def test_in_numbers() -> None:
    """Seven cached blocks, one of which is found again each second: over ten seconds ten blocks of
    1.6 s are lost. If a tier below keeps them, only their load is.
    """
    _, b = pair()
    assert isclose(lending(b).seconds, 16.0) and lending(b).nbytes == 350
    below = caching(tenant("b", 3, times=FAST), 7, 1.0, keeps_below=True)
    assert isclose(lending(below).seconds, 500 / 10_000)


def idle_donor(times: tuple[float, float], **more: Any) -> dict[str, tuple[int, int]]:
    """Plan for three tenants: `a` wants memory, `b` has cached prefixes, and neither may give
    layers. `c` has been idle for long, and uses all its KV memory.
    """
    stuck = (100.0, 1.0)
    a, c = tenant("a", 10, 4, times=stuck, of=3), tenant("c", 10, active=False, times=times, of=3)
    b = caching(tenant("b", 3, times=stuck, of=3), 7, 1.0, **more)
    a, b = (structs.replace(t, tenant=replace(t.tenant, max_percent=0.0)) for t in (a, b))
    return planned(a, b, c)


def test_layers_of_an_idle_model_go_if_they_are_cheaper_a_byte() -> None:
    assert idle_donor(FAST) == {"a": (0, 14), "b": (0, 9), "c": (2, 10)}


def test_they_stay_if_what_is_cached_comes_back_sooner() -> None:
    """A layer of 100 bytes takes 1,000 s to load. To compute 350 bytes of prefixes again takes 16
    s, so these go and the layers of `c` stay.
    """
    assert idle_donor((1000.0, 1.0)) == {"a": (0, 14), "b": (0, 6), "c": (0, 10)}


def test_what_is_kept_below_the_device_goes_before_slow_layers() -> None:
    fast, slow = pair(times=FAST, keeps_below=True), idle_donor(SLOW, keeps_below=True)
    assert planned(*fast)["b"] == (0, 10)  # layers that hide cost nothing at all
    assert slow["c"][0] == 0  # both cross the same link once, and layers all of it


def test_no_layers_and_the_prefixes_go() -> None:
    """No layer may go, by the policy or by a limit of 0 %. The demand of `a` is met by prefixes of
    `b`; no request of `b` loses memory.
    """
    targets = planned(*pair(), policy=Policy.POOLED)
    assert targets == {"a": (0, 14), "b": (0, 6)}
    stuck = [structs.replace(t, tenant=replace(t.tenant, max_percent=0.0)) for t in pair()]
    assert planned(*stuck) == {"a": (0, 14), "b": (0, 6)}


def test_a_demand_that_layers_do_not_serve_takes_prefixes_as_well() -> None:
    hungry, b = tenant("a", 10, 80, times=FAST), pair()[1]
    assert planned(hungry, b) == planned(hungry, caching(b, 0, 0.0))
    assert planned(hungry, b)["b"][1] < 10


def test_prefixes_keep_no_layers_away() -> None:
    """`a` is idle and holds prefixes on memory of its own layers. Without demand all layers come
    back, as without prefixes.
    """
    lent = tenant("a", 3, layers_remapped=6, kv=20, active=False)
    assert planned(caching(lent, 17, 5.0), tenant("b", 3)) == {"a": (0, 10), "b": (0, 10)}


def test_prefixes_do_not_keep_a_woken_model_waiting() -> None:
    """`b` wakes while `a` uses memory of its layers, for requests and prefixes. The plan is the
    same as if `a` had no prefixes.
    """
    a, woken = tenant("a", 16), tenant("b", 3, 2, layers_remapped=3, kv=4, times=SLOW)
    assert planned(caching(a, 4, 5.0), woken) == planned(a, woken)


def test_in_turns_nothing_is_kept() -> None:
    turns = TurnLengths(1.0)
    assert planned(*pair(), turns=turns) == planned(*pair(again_s=0.0), turns=turns)


@given(st.data())
def test_demand_gets_what_it_gets_without_prefixes(data: st.DataObject) -> None:
    """Tenants with cached prefixes get in all at least as much of their demand as the same tenants
    without prefixes, and the plan fits.
    """
    count = data.draw(st.integers(2, 4))
    small = st.integers(0, 10)

    def one(number: int) -> TenantSnapshot:
        times = data.draw(st.sampled_from([FAST, SLOW, (1.0, 1.0), (0.0, 0.0)]))
        kv = data.draw(st.integers(2, 10))
        used = data.draw(st.integers(0, kv))
        wants = data.draw(small), data.draw(small)
        plain = tenant(f"t{number}", used, *wants, of=count, kv=kv, times=times)
        return caching(plain, kv - used, data.draw(st.floats(0, 5)), data.draw(st.floats(0, 1)))

    tenants = [one(number) for number in range(count)]
    bare = [caching(t, 0, 0.0) for t in tenants]

    def targets(of: list[TenantSnapshot]) -> Any:
        return plan(of, count * SHARE, 0, Policy.MIRAGE, REMAP).targets

    planned(*tenants)  # checks that it fits
    kept, without = targets(tenants), targets(bare)

    def served(t: TenantSnapshot, of: Any) -> int:
        return min(of[t.name].kv_extents, t.growth_extents)

    assert sum(served(t, kept) for t in tenants) >= sum(served(t, without) for t in tenants)


def test_the_rate_follows_the_counter() -> None:
    rate = RecentRate(AGAIN_S)
    for second in range(600):
        rate.add(3 * second, float(second))
    assert isclose(rate.per_s, 3.0, rel_tol=0.01)
    rate.add(0, 600.0)  # an engine that started anew
    assert isclose(rate.per_s, 3.0, rel_tol=0.01)
    rate.add(0, 600.0 + 10 * AGAIN_S)
    assert rate.per_s < 0.001
