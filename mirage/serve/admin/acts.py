"""Acts of an operator on a tenant: their effects in words, and reasons why not to do them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mirage.control.roster.states import BROKEN, COMING, GONE, LifeState
from mirage.serve.admin.forms import OperatorAct

DRAIN_S = 60.0
"""Seconds that a drain lets running requests have, unless the operator names a time."""
TARGETS = {
    OperatorAct.SLEEP: LifeState.SLEEPING,
    OperatorAct.WAKE: LifeState.READY,
    OperatorAct.STOP: LifeState.STOPPED,
    OperatorAct.RESTART: LifeState.READY,
    OperatorAct.DRAIN: LifeState.SLEEPING,
}
"""State of a tenant when the act is done; `target` also covers policies without sleep."""


class ActedUpon(NamedTuple):
    """Tenant that an act is for. `sleeps` is true if the policy lets tenants sleep.

    `ready_s` and `drain_s` are seconds: until it would be ready, and for running requests to end.
    """

    name: str
    state: LifeState
    sleeps: bool
    running: int = 0
    ready_s: float = 0.0
    drain_s: float = 0.0


def target(act: OperatorAct, *, sleeps: bool) -> LifeState:
    """State of a tenant when the act is done. A tenant that drains is asleep then, or stopped where
    tenants cannot sleep (`sleeps` is False)."""
    if act is OperatorAct.DRAIN and not sleeps:
        return LifeState.STOPPED
    return TARGETS[act]


def obstacle(act: OperatorAct, on: ActedUpon) -> str:
    """Reason why an act cannot be done; empty if it can."""
    if act is OperatorAct.SLEEP and not on.sleeps:
        return "only tenants of policy mirage can sleep: drain or stop it instead"
    if act in (OperatorAct.SLEEP, OperatorAct.DRAIN) and on.state in GONE:
        return f"{on.name} is {on.state}: it has no engine that could {act}"
    return ""


def foretold(act: OperatorAct, on: ActedUpon) -> str:
    """Sentence about the effect of an act, by the tenant's state before it."""
    goal = target(act, sleeps=on.sleeps)
    if on.state is goal and act is not OperatorAct.RESTART:
        return f"{on.name} is {on.state} already"
    if on.state in BROKEN and goal is LifeState.READY:
        return f"{on.name} is {on.state}, and starts as there is room, without a rest"
    if act is OperatorAct.WAKE:
        return f"{on.name} will be ready in about {on.ready_s:.1f} s"
    if act is OperatorAct.RESTART:
        again = "starts" if on.state in GONE else "starts again"
        return f"{on.name} {_leaves(on, LifeState.STOPPED)}, and {again} as there is room"
    stays = ", and stays stopped" if on.state in GONE else ""
    return f"{on.name} {_leaves(on, goal)}{stays}; a request or a wake brings it back"


def _leaves(on: ActedUpon, goal: LifeState) -> str:
    verb = "sleeps" if goal is LifeState.SLEEPING else "stops"
    if on.state in GONE:
        return f"is {on.state}"
    if goal is LifeState.SLEEPING and on.state in COMING:
        return f"{verb} once it is ready"
    if on.state in (LifeState.READY, LifeState.DRAINING) and on.running:
        some = "1 request has" if on.running == 1 else f"{on.running} requests have"
        return f"{verb} when its {some} ended, in {on.drain_s:g} s at most"
    return f"{verb} now"
