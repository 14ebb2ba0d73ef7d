"""Facts by which a request is counted and logged, filled in while it is handled."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from mirage.serve.router.gate import Passage


@dataclass
class CountedAs:
    """Tenant, device and status that one request is counted by."""

    tenant: str = ""
    device: str = ""
    """Name of the tenant's device; empty if there is only one."""
    status: int = 500
    """Status to count; 500 holds for a request that ends by an unforeseen error."""
    passage: Passage | None = None
    """Limits' record of the request; None until the request is let in."""


COUNTED_AS = web.RequestKey("mirage_counted_as", CountedAs)
"""Key under which a request for a tenant carries its `CountedAs`."""
