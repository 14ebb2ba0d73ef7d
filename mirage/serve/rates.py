"""Limits of a key or a tenant as plain data, which one process can send to another. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.config import LimitsSection, TenantSection


class RateLimits(msgspec.Struct, frozen=True):
    """Most that a key or a tenant gets; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Tokens of prompts and of what was generated."""
    in_flight: int | None = None
    """Requests that run or wait at one time."""


class BodyBounds(msgspec.Struct, frozen=True):
    """Most that one request to a tenant may ask for, and values of keys that it leaves out."""

    max_tokens: int | None = None
    n: int | None = None
    logprobs: int | None = None
    defaults: dict[str, Any] = {}


NO_LIMITS = RateLimits()
NO_BOUNDS = BodyBounds()


def rate_limits(section: LimitsSection) -> RateLimits:
    """Limits as a file has them."""
    return RateLimits(section.requests_per_minute, section.tokens_per_minute, section.in_flight)


def body_bounds(tenant: TenantSection) -> BodyBounds:
    """Bounds as a tenant's section has them."""
    limits = tenant.limits
    return BodyBounds(limits.max_tokens, limits.n, limits.logprobs, tenant.defaults)
