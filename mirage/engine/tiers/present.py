"""Tiers of this process's engine, for its worker, its scheduler and vLLM's connectors."""

from __future__ import annotations

from mirage.engine.tiers.engine_tiers import EngineTiers
from mirage.engine.tiers.offers import Offers

_tiers: EngineTiers | None = None


def publish(tiers: EngineTiers | None) -> None:
    """Keep the worker's tiers for the scheduler that vLLM builds next in this process; None if the
    worker has no tiers."""
    global _tiers
    _tiers = tiers


def tiers() -> EngineTiers | None:
    """Return the tiers of this engine; None if no pool is below it."""
    return _tiers


def content() -> Offers | None:
    """Return the record of this engine's content kept below its device; None if there is no
    pool."""
    return None if _tiers is None else _tiers.offers
