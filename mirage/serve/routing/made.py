"""Table of a device for its routers, made from registry and attendance."""

from __future__ import annotations

from typing import Any

from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.table import RoutedRow, RouterTable


def table_of(registry: Registry, attendance: Attendance, below: dict[str, Any]) -> RouterTable:
    """Table of all tenants, with the health of the device and of the memory `below` it."""
    rows = tuple(_row(one, attendance) for one in registry.backends.values())
    return RouterTable(rows, registry.sources.device(), below)


def _row(one: TenantServer, attendance: Attendance) -> RoutedRow:
    return RoutedRow(
        one.name,
        str(one.socket),
        one.max_model_len,
        one.state,
        life=attendance.life(one.name),
        adopted=one.adopted,
        at_once=attendance.passes(one.name),
        well=one.is_well,
        reason=one.reason,
        adapters={**one.adapters, **one.loading.folders()},
        known=one.loading.names(),
        aliases=one.aliases,
        limits=one.limits,
        bounds=one.bounds,
        comeback=one.comeback.times,
        leaves=one.leaves,
        wake_s=attendance.wake_s(one.name),
    )
