"""Tiers of this process's engine, for its worker, its scheduler and vLLM's connectors."""

from __future__ import annotations

from mirage.engine.tiers.engine_tiers import EngineTiers
from mirage.engine.tiers.offers import Offers

_tiers: EngineTiers | None = None


def publish(tiers: EngineTiers | None) -> None:
    """Publish the worker's tiers for the scheduler that vLLM builds next; None if it has none."""
    global _tiers
    _tiers = tiers


def tiers() -> EngineTiers | None:
    """Return the tiers of this engine; None without a pool below it."""
    return _tiers


def content() -> Offers | None:
    """Return the record of this engine's content kept below its device; None without a pool."""
    return None if _tiers is None else _tiers.offers
