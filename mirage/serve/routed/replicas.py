"""Tenants in the form in which `mirage.control.routes` chooses between replicas."""

from __future__ import annotations

from mirage.control.roster.states import LifeState
from mirage.control.routes.replica import Replica, RouteTarget
from mirage.serve.routed.tenants import RoutedTenant

ASKED = {LifeState.SLEEPING: LifeState.WAKING, LifeState.STOPPED: LifeState.STARTING}
"""State to assume for a sleeping or stopped tenant that a request already waits for: the tenant is
about to enter it, but the supervisor's table does not say so yet.
"""


def replica_of(one: RoutedTenant, now: float, *, heard: bool) -> Replica:
    """Tenant as a replica; `heard` is false while its device's server is away.

    `now` is by `time.monotonic`.
    """
    row = one.row
    target = RouteTarget(row.name, one.device, row.socket, _state(one, heard=heard))
    return Replica(target, one.in_flight, one.pace.rate(now), row.comes_s(now))


def _state(one: RoutedTenant, *, heard: bool) -> LifeState:
    row = one.row
    if row.at_once:
        return row.state
    if not heard:
        return LifeState.FAILED  # nobody is there to wake it
    if row.state is LifeState.READY:
        return LifeState.DOWN  # its engine is about to end
    return ASKED.get(row.state, row.state) if one.in_flight else row.state
