"""Changes of states between two answers of a device that is asked again and again."""

from __future__ import annotations

import pytest

from mirage.serve.admin.forms import (
    FORM_VERSION,
    DeclaredTenant,
    DeviceStatus,
    TenantStatus,
    TenantsTold,
)
from mirage.serve.machine.watch import changed

pytestmark = pytest.mark.pure

SPEC = DeclaredTenant(
    share_percent=40.0,
    aliases=[],
    adapters={},
    priority=0,
    start="now",
    keep_alive_s=None,
    stop_after_s=None,
    pinned=False,
    max_waiting=1,
    max_wait_s=1.0,
    keep_weights="host",
)


def status(name: str, state: str, since: float, *, removed: bool = False) -> TenantStatus:
    return TenantStatus(
        name=name,
        spec=SPEC,
        state=state,
        since=since,
        reason="",
        weights="host",
        device="d",
        held_bytes=0,
        share_bytes=None,
        asleep_bytes=None,
        running=0,
        waiting=0,
        ready_s=None,
        yields_s=None,
        adapters=[],
        restarts=0,
        log="",
        removed=removed,
    )


def told(revision: int, *tenants: TenantStatus) -> TenantsTold:
    server = DeviceStatus(pid=1, url="", policy="mirage", device="d", device_bytes=1)
    return TenantsTold(
        form_version=FORM_VERSION, revision=revision, server=server, tenants=list(tenants)
    )


def test_only_what_has_begun_is_told_and_what_has_gone() -> None:
    before = told(1, status("same", "ready", 1.0), status("anew", "ready", 1.0))
    before.tenants.extend([status("gone", "stopping", 1.0), status("leaves", "ready", 1.0)])
    now = told(2, status("same", "ready", 1.0), status("anew", "ready", 5.0))
    now.tenants.extend(
        [status("new", "starting", 4.0), status("leaves", "stopping", 6.0, removed=True)]
    )
    found = {(one.tenant, one.before, one.state, one.removed) for one in changed(before, now)}
    assert found == {
        ("anew", "ready", "ready", False),
        ("new", "absent", "starting", False),
        ("leaves", "ready", "stopping", True),
        ("gone", "stopping", "absent", True),
    }
    assert {one.revision for one in changed(before, now)} == {2}
