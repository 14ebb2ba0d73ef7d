"""Predicted time at which a tenant is ready, by the bytes that others give back and the loads of
wakes. Pure.

The prediction goes through the line once. Each tenant in it takes first the bytes that are free,
and then those of the next tenant that yields; it can yield itself once it has been awake for its
time. Wakes load one after the other, since they share the link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from mirage.control.roster.member import DrainGoal, RosterMember
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.states import COMING, LifeState


def predicted_s(
    one: RosterMember,
    line: Sequence[RosterMember],
    members: Iterable[RosterMember],
    free: int,
    rules: RosterRules,
    now: float,
) -> float:
    """Return the seconds until the tenant `one` is ready. It has its place in the `line` of tenants
    that wait for memory; if it is not there, it is assumed to join at the end. `free`: free bytes
    of the device."""
    if one.state is LifeState.READY:
        return 0.0
    if one.state in COMING:
        left = one.came_at + one.comes_s - now
        return left if left > 0 else one.comes_s  # if it is overdue, nothing better is known
    given = [entry for m in members if m is not one for entry in _given(m, rules, now)]
    heapify(given)
    time = now
    link_free = max((m.came_at + m.comes_s for m in members if _loads(m)), default=now)
    for member in [*line, *([] if one in line else [one])]:
        time = max(time, member.retry_at if member is one else now)
        if member.state is LifeState.DRAINING:
            time = max(time, _left_at(member, now))
        while member.need > free and given:
            freed_at, nbytes = heappop(given)
            time, free = max(time, freed_at), free + nbytes
        free = max(0, free - member.need)
        ready = link_free = max(time, link_free) + member.comes_s
        if member is one:
            return ready - now
        heappush(given, (_yields_at(member, ready, rules, ready), _yields(member, rules)))
    raise AssertionError("the tenant is in the line")


def _loads(m: RosterMember) -> bool:
    return m.state is LifeState.WAKING


def _left_at(m: RosterMember, now: float) -> float:
    """Return the time in seconds at which a draining tenant sleeps or has stopped."""
    ends = now if m.told or not m.running else max(now, m.until)
    return ends + m.leaves_s(m.goal)


def _given(m: RosterMember, rules: RosterRules, now: float) -> list[tuple[float, int]]:
    """Return pairs of a time at which a tenant gives bytes back, and the number of bytes."""
    if m.state is LifeState.DRAINING:
        return [(_left_at(m, now), m.coming_back)]
    if not m.gives_way:
        return []
    ready = m.came_at + m.comes_s if m.state in COMING else m.ready_at
    return [(_yields_at(m, ready, rules, now), _yields(m, rules))]


def _yields_at(m: RosterMember, ready: float, rules: RosterRules, now: float) -> float:
    """Return the time in seconds at which the bytes of a tenant are free, if another tenant needs
    them from `now` on.

    The tenant is ready since the time `ready`, or will be ready then. It yields by its rules: once
    it has been awake for its time, it drains if it is busy, and then sleeps or stops.
    """
    busy = bool(m.running or m.is_asked_for)
    drained_s = rules.drain_s if busy else 0.0
    goal = _goal(rules)
    begins = max(now, ready + m.awake_s(goal, rules, busy=busy))
    return begins + drained_s + m.leaves_s(goal)


def _yields(m: RosterMember, rules: RosterRules) -> int:
    """Return the bytes that an awake tenant gives back when it yields."""
    return m.own.yields if _goal(rules) is DrainGoal.SLEEP else m.own.awake


def _goal(rules: RosterRules) -> DrainGoal:
    return DrainGoal.SLEEP if rules.sleeps else DrainGoal.STOP
