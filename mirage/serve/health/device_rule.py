"""Rule by which a device counts as failed. Pure: the caller tells the time, in seconds.

It has failed after a fault of the device itself, or if a fresh process cannot use it. A fault of
one process's context, such as an illegal address, does not prove that: a request or a model's
kernel can cause it. Several such faults do, if they came over different requests and in engines of
different tenants; with one tenant alone, its own restarts are counted (`restarts`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from vmm.faults import Fault, Scope

SEVERAL = 3
WINDOW_S = 600.0
TOGETHER_S = 10.0
"""Seconds within which faults count as one: processes that share a context by MPS all end by it."""


@dataclass(frozen=True)
class _Met:
    tenant: str
    bodies: Set[str]
    at: float


class DeviceRecord:
    """Faults that ended engines of one device lately."""

    def __init__(self) -> None:
        self._met: list[_Met] = []

    def met(self, tenant: str, fault: Fault, bodies: Set[str], now: float) -> str:
        """Record a fault, and return the reason why the device has failed; empty if it has not.

        `bodies` are digests of requests that may have caused the fault. Faults that share a digest
        count once, because they speak of the request, not of the device.
        """
        if fault.scope is Scope.DEVICE:
            return f"{fault} (tenant {tenant!r})"
        self._met = [one for one in self._met if one.at > now - WINDOW_S]
        if any(now - one.at < TOGETHER_S or one.bodies & bodies for one in self._met):
            return ""
        self._met.append(_Met(tenant, bodies, now))
        tenants = sorted({one.tenant for one in self._met})
        if len(self._met) < SEVERAL or len(tenants) < 2:
            return ""
        of = " and ".join(map(repr, tenants))
        count = f"{len(self._met)} faults in {WINDOW_S / 60:g} minutes"
        return f"{count} over different requests of tenants {of}, the last {fault}"
