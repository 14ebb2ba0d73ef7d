"""Bytes of the device, and the tenants that yield for one that wants to come. Pure.

Idle tenants yield first, in victim order, then tenants with running requests, which drain: low
priorities first, and of equal priorities the one that was awake longest. They sleep. Sleeping
tenants are stopped if all others asleep would not leave enough: low priorities first, and of equal
priorities the longest idle. Before a tenant with running requests drains, sleeping ones also stop
that were idle for `rest_worth` times as long as their stop and start take. If that is not enough
either, tenants that yield stop instead. No tenant yields unless all that is missing can be had: a
sleep that brings no wake costs time for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mirage.control.roster.member import DrainGoal, RosterMember
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.states import LifeState
from scheduler import victims
from scheduler.victims import Rule


class Yielding(NamedTuple):
    """Tenant that yields, and the state that it goes to: asleep or stopped."""

    member: RosterMember
    goal: DrainGoal


class DeviceRoom:
    """View of the bytes that `members` hold of a device of `device_bytes`. Times are seconds."""

    def __init__(
        self, device_bytes: int, members: Mapping[str, RosterMember], rules: RosterRules
    ) -> None:
        self.device_bytes, self._members, self._rules = device_bytes, members, rules

    @property
    def free(self) -> int:
        """Bytes of the device that no tenant holds or may come to hold."""
        return self.device_bytes - sum(m.nbytes for m in self._members.values())

    @property
    def coming(self) -> int:
        """Bytes that will become free soon without another order."""
        return sum(m.coming_back for m in self._members.values())

    @property
    def asleep(self) -> int:
        """Bytes that sleeping tenants hold, and those that tenants which drain towards sleep will
        hold asleep."""
        return sum(m.own.asleep for m in self._members.values() if _sleeps(m))

    def may_pass(self, one: RosterMember, head: RosterMember, claimed: int) -> bool:
        """True if tenant `one` may start or wake before the `head` of the line of waiting tenants,
        for which there is no room yet.

        It may use neither the `claimed` bytes nor those that the head needs. The head can have free
        bytes, and those of tenants that started or woke before it joined the line (`_bound`).
        """
        fits = one.need + claimed <= self.free
        return fits and head.need + claimed <= self._bound(head) - one.need

    def spare(self, to: RosterMember, claimed: int = 0) -> int:
        """Return the bytes that shall stay free when `to` comes: KV memory for running requests.

        0 if all tenants can be awake at the same time, or if no other tenant has more than one
        running request, which each share holds. 0 too if `to`, with these bytes and the `claimed`
        ones of tenants before it, would have to wait for tenants that came after it stood in the
        line.
        """
        if sum(m.own.awake for m in self._members.values()) <= self.device_bytes:
            return 0
        if not any(m.running > 1 and m.state is LifeState.READY for m in self._others(to)):
            return 0
        spare = int(self._rules.spare_part * self.device_bytes)
        return spare if claimed + to.need + spare <= self._bound(to) else 0

    def _bound(self, one: RosterMember) -> int:
        """Return the bytes that tenant `one` can have from free memory and from tenants that
        started or woke before it joined the line."""
        older = (m for m in self._others(one) if m.gives_way and m.came_at <= one.queued_at)
        return self.free + self.coming + sum(m.yields for m in older)

    def yielding(
        self, to: RosterMember, now: float, claimed: int = 0, *, gently: bool = False
    ) -> list[Yielding] | None:
        """Return the tenants that shall yield to `to`: an empty list if the bytes that it needs are
        free or coming, None if they cannot be had yet.

        `claimed`: bytes that others need before it. `gently`: only idle tenants yield, and only to
        sleep.
        """
        short = claimed + to.need + self.spare(to, claimed) - self.free - self.coming
        if short <= 0:
            return []
        stopped, left = ([], 0) if gently else self._stopped(to, short, now)
        short -= sum(m.nbytes for m in stopped)
        goal = DrainGoal.SLEEP if self._rules.sleeps and left <= 0 else DrainGoal.STOP
        patient = not gently and now >= to.queued_at + self._rules.patience_s
        chosen = _enough(self._asked(to, goal, now, busy=patient), goal, short)
        if sum(m.gain(goal) for m in chosen) < short:
            return None
        stop = [Yielding(m, DrainGoal.STOP) for m in stopped]
        return stop + [Yielding(m, goal) for m in chosen]

    def longest_idle(self, now: float) -> list[RosterMember]:
        """Return the sleeping tenants that may stop, in the order in which they do: low priorities
        first, then the longest idle.

        Tenants that want to wake come last.
        """
        may = [
            m
            for m in self._members.values()
            if m.state is LifeState.SLEEPING
            and not m.stays
            and now >= m.settled_at(DrainGoal.STOP, self._rules)
        ]
        return sorted(_ordered(may, "lru"), key=lambda m: m.queued is not None)

    def _stopped(self, to: RosterMember, short: int, now: float) -> tuple[list[RosterMember], int]:
        """Return the sleeping tenants that stop, and the bytes that are missing even so.

        They stop if sleeps of all other tenants would not bring enough. Tenants that have `rested`
        stop already if sleeps of idle tenants would not, before tenants with running requests
        drain.
        """
        left = short - sum(m.yields for m in self._others(to) if m.gives_way)
        idle = self._asked(to, DrainGoal.SLEEP, now, busy=False)
        beside_busy = short - sum(m.yields for m in idle)
        chosen = []
        for member in self.longest_idle(now):
            spares = beside_busy > 0 and member.rested(self._rules, now)
            if (left > 0 or spares) and member is not to and not _before(member, to):
                chosen.append(member)
                left -= member.nbytes
                beside_busy -= member.nbytes
        return chosen, left

    def _asked(
        self, to: RosterMember, goal: DrainGoal, now: float, *, busy: bool
    ) -> list[RosterMember]:
        """Return the tenants that may be asked to yield now, in order: idle ones, and after them,
        if `busy`, those with running requests."""
        may = [
            m
            for m in self._others(to)
            if m.state is LifeState.READY
            and not m.stays
            and (busy or not m.running)
            and now >= m.settled_at(goal, self._rules)
        ]
        idle = _ordered((m for m in may if not m.running), self._rules.victims)
        running = [m for m in may if m.running]
        # They all had work just now: the one that was awake longest is first, so they take turns.
        return idle + sorted(running, key=lambda m: (m.spec.priority, m.ready_at, m.name))

    def _others(self, one: RosterMember) -> Iterable[RosterMember]:
        return (m for m in self._members.values() if m is not one)


def _before(one: RosterMember, other: RosterMember) -> bool:
    """True if `one` stands in the line before `other`."""
    return one.queued is not None and (other.queued is None or one.queued < other.queued)


def _sleeps(m: RosterMember) -> bool:
    drains = m.state is LifeState.DRAINING and m.goal is DrainGoal.SLEEP
    return drains or m.state is LifeState.SLEEPING


def _ordered(members: Iterable[RosterMember], rule: Rule) -> list[RosterMember]:
    """Return idle tenants in victim order."""
    named = {m.name: m for m in members}
    candidates = [
        victims.Candidate(m.name, False, m.spec.priority, m.last_busy) for m in named.values()
    ]
    return [named[name] for name in victims.order(candidates, rule)]


def _enough(ordered: Iterable[RosterMember], goal: DrainGoal, short: int) -> list[RosterMember]:
    """Return the first tenants that bring `short` bytes together, without those that later ones
    make unnecessary."""
    chosen: list[RosterMember] = []
    for member in ordered:
        if short <= 0:
            break
        if member.gain(goal) > 0:
            chosen.append(member)
            short -= member.gain(goal)
    for member in list(chosen):
        if short + member.gain(goal) <= 0:
            chosen.remove(member)
            short += member.gain(goal)
    return chosen
