"""Tenants as text for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mirage.control.roster.states import BROKEN, LifeState
from mirage.serve.admin.forms import AdapterStatus, TenantStatus, TenantsTold
from mirage.serve.models.weights_progress import WeightsComing
from mirage.units import size

HEADINGS = ("NAME", "STATE", "WEIGHTS", "DEVICE", "SHARE", "RUNNING", "WAITING", "SINCE", "UNTIL")


def process_table(told: TenantsTold, now: float) -> str:
    """Table of tenants, and lines about weights that are being brought.

    DEVICE is the device memory that a tenant holds. ON names its device, if there are several.
    `now` is in seconds since 1970.
    """
    rows = [HEADINGS, *(_row(tenant, now) for tenant in told.tenants)]
    if any(tenant.device != told.server.device for tenant in told.tenants):
        devices = ["ON", *(tenant.device for tenant in told.tenants)]
        rows = [(*row, device) for row, device in zip(rows, devices, strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *(coming(one) for one in told.coming)])


def coming(one: WeightsComing) -> str:
    """Line about weights that are being brought."""
    return f"weights of {one.model} come: {size(one.here)} of {size(one.missing)}"


def _row(one: TenantStatus, now: float) -> tuple[str, ...]:
    return (
        one.name,
        one.state,
        one.weights,
        size(one.held_bytes),
        "auto" if one.share_bytes is None else size(one.share_bytes),
        str(one.running),
        str(one.waiting),
        f"{span(now - one.since)} ago",
        until(one),
    )


def until(one: TenantStatus) -> str:
    """Event that will end the tenant's present state by itself, with its time. Without one it is
    the reason if the tenant is down or has failed, ``pinned`` if it is pinned, else ``-``.
    """
    if one.state in (LifeState.STARTING, LifeState.WAKING):
        return "ready" if one.ready_s is None else f"ready in {span(one.ready_s)}"
    if one.yields_s is not None:
        goal = "stops" if one.state == LifeState.SLEEPING or one.asleep_bytes is None else "sleeps"
        return f"{goal} in {span(one.yields_s)}"
    if one.state in BROKEN:
        return one.reason or "-"
    return "pinned" if one.spec.pinned else "-"


def span(seconds: float) -> str:
    """Time in words, such as ``"5 s"``, ``"3 min"``, ``"7 h"``, ``"2 days"``."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def described(one: TenantStatus, now: float) -> str:
    """All facts about one tenant, one line each; `now` is in seconds since 1970."""
    rows = [
        ("name", one.name),
        ("state", f"{one.state}, for {span(now - one.since)}"),
        ("until", until(one)),
        ("reason", one.reason or "-"),
        ("weights", one.weights),
        ("device", f"{one.device}, {size(one.held_bytes)} held"),
        ("share", _share(one)),
        ("asleep", "-" if one.asleep_bytes is None else size(one.asleep_bytes)),
        ("ready", "-" if one.ready_s is None else f"in {one.ready_s:.1f} s if asked for now"),
        ("requests", f"{one.running} running, {one.waiting} waiting"),
        ("keys", _keys(one)),
        *(("adapter", _adapter(one, adapter)) for adapter in one.adapters),
        ("restarts", str(one.restarts)),
        ("log", one.log),
    ]
    return "\n".join(_aligned(rows))


def _share(one: TenantStatus) -> str:
    nbytes = "auto" if one.share_bytes is None else size(one.share_bytes)
    percent = one.spec.share_percent
    return nbytes if percent is None else f"{nbytes} ({percent:g} %)"


def _adapter(one: TenantStatus, adapter: AdapterStatus) -> str:
    folder = one.spec.adapters.get(adapter.name, "-")
    why = f" ({adapter.reason})" if adapter.reason else ""
    return f"{adapter.name}, {adapter.state}{why}, {folder}"


def _keys(one: TenantStatus) -> str:
    spec = one.spec
    ever = {"keep_alive": spec.keep_alive_s, "stop_after": spec.stop_after_s}
    spans = [f"{key} {'never' if s is None else f'{s:g} s'}" for key, s in ever.items()]
    known = [
        *([f"aliases {' '.join(spec.aliases)}"] if spec.aliases else []),
        f"start {spec.start}",
        *spans,
        f"pinned {str(spec.pinned).lower()}",
        f"priority {spec.priority}",
        f"max_waiting {spec.max_waiting}",
        f"max_wait_s {spec.max_wait_s:g}",
        f"keep_weights {spec.keep_weights}",
    ]
    return ", ".join(known)


def _aligned(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{key:<10}{value}" for key, value in rows]
