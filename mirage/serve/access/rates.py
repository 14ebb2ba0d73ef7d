"""Limits of a key or a tenant as plain data, which one process can send to another. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.config import LimitsSection, TenantSection


class RateLimits(msgspec.Struct, frozen=True):
    """Most that a key or a tenant may use; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and generated tokens a minute."""
    in_flight: int | None = None
    """Requests that run or wait at the same time."""


class BodyBounds(msgspec.Struct, frozen=True):
    """Most that one request to a tenant may ask for, and defaults for keys that its body lacks."""

    max_tokens: int | None = None
    n: int | None = None
    logprobs: int | None = None
    defaults: dict[str, Any] = {}


NO_LIMITS = RateLimits()
NO_BOUNDS = BodyBounds()


def rate_limits(section: LimitsSection) -> RateLimits:
    """Limits of a section as plain data."""
    return RateLimits(section.requests_per_minute, section.tokens_per_minute, section.in_flight)


def body_bounds(tenant: TenantSection) -> BodyBounds:
    """Bounds and defaults of a tenant's section as plain data."""
    limits = tenant.limits
    return BodyBounds(limits.max_tokens, limits.n, limits.logprobs, tenant.defaults)
