"""Limits of a key or a tenant as plain data, which one process can send to another. Pure."""

from __future__ import annotations

import msgspec

from mirage.config import LimitsSection


class RateLimits(msgspec.Struct, frozen=True):
    """Most that a key or a tenant gets; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Tokens of prompts and of what was generated."""
    in_flight: int | None = None
    """Requests that run or wait at one time."""


NO_LIMITS = RateLimits()


def rate_limits(section: LimitsSection) -> RateLimits:
    """Limits as a file has them."""
    return RateLimits(**section.model_dump())
