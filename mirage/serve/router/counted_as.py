"""Facts by which a request is counted and logged, filled in while it is handled."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from mirage.serve.router.gate import Passage


@dataclass
class CountedAs:
    """Tenant, device and HTTP status under which one request is counted and logged."""

    tenant: str = ""
    device: str = ""
    """Name of the tenant's device; empty if there is only one."""
    status: int = 500
    """HTTP status; 500 stays for a request that ends by an unforeseen error."""
    passage: Passage | None = None
    """Record of the request for the limits of its key and tenant; None until it is let in."""


COUNTED_AS = web.RequestKey("mirage_counted_as", CountedAs)
"""Key under which a request for a tenant carries its `CountedAs`."""
