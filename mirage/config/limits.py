"""Limits on requests and tokens, of a key or of a tenant."""

from __future__ import annotations

from mirage.config.strict import Strict
from mirage.config.values import Count, Whole


class LimitsSection(Strict):
    """Limits of one key or one tenant; None is no limit."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Most tokens in a minute, those of prompts and of answers together."""
    in_flight: Count | None = None
    """Most requests that run or wait at the same time."""


class TenantLimitsSection(LimitsSection):
    """Limits of a tenant: for all clients together, and for one request."""

    max_tokens: Count | None = None
    """Most tokens of one answer."""
    n: Count | None = None
    """Most answers to one request."""
    logprobs: Whole | None = None
    """Most tokens whose probability is returned for each position."""
