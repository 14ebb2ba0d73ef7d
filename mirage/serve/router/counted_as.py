"""Facts that a request is counted and told by, filled in as it is understood."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from mirage.serve.router.gate import Passage


@dataclass
class CountedAs:
    """Tenant and status that one request is counted by."""

    tenant: str = ""
    device: str = ""
    """Name of its device among several."""
    status: int = 500
    """Status of a request that does not end as it should."""
    passage: Passage | None = None
    """None until it is within its limits."""


COUNTED_AS = web.RequestKey("mirage_counted_as", CountedAs)
"""Key of a request that is to be passed on."""
