"""Rules by which a placement changes, and the past that they depend on."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from mirage.control.placement.facts import LoadWindow, PlacementFacts
from mirage.control.placement.placed import DevicePlacement

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Rules of placement. A server takes them, but for `evaluations` and `band`, from section
    `placement` of its configuration. Parts are parts of all requests."""

    evaluations: int = 400
    """Number of windows of placements that a decision may have judged."""
    gain: float = 0.01
    """Least increase of the part of requests within limits for which models move. A model with
    requests and without a replica gets one in any case."""
    gain_per_gib: float = 0.0002
    """Further increase that is needed for each GiB of parameters to be loaded to a device."""
    rest_s: float = 600.0
    """Seconds for which a model does not move again after a move."""
    moves_an_hour: int = 12
    calm: float = 0.0
    """Pressure of a model's other devices up to which a replica is closed, if as many requests are
    within limits without it; 0: replicas are never closed."""
    band: float = 0.1
    """Relative change of a model's load up to which a placement that was found best is not judged
    again; counting noise of its requests is added."""


MISSED = 0.0005
"""Decrease of the part of requests within limits above which a closed replica would be missed."""
DEFAULTS = PlacementRules()


class PastMove(NamedTuple):
    """Move of a model, at a time in seconds."""

    at: float
    model: str


@dataclass(frozen=True, slots=True)
class PlacementPast:
    """Past that one placement decision hands to the next: the moves of the last hour, and the
    placement last found best, with the facts it was best for. Times are seconds."""

    moves: tuple[PastMove, ...] = ()
    settled: PlacementFacts | None = None
    """Facts for which `placement` was found best; None if no placement is known to be best."""
    placement: DevicePlacement | None = None

    def resting(self, rules: PlacementRules, now: float) -> frozenset[str]:
        """Return the models that moved too recently to move again."""
        return frozenset(move.model for move in self.moves if now - move.at < rules.rest_s)

    def left(self, rules: PlacementRules, now: float) -> int:
        """Return the number of further moves that the limit for the last hour allows."""
        return max(0, rules.moves_an_hour - sum(now - m.at < HOUR_S for m in self.moves))

    def holds(self, facts: PlacementFacts, present: DevicePlacement, rules: PlacementRules) -> bool:
        """True if the present placement was found best, for facts that are nearly equal to these.

        A few requests are nearly none, but what was best for them need not be best once no model
        has requests.
        """
        known = self.settled
        if known is None or self.placement != present or len(known.windows) != len(facts.windows):
            return False
        same = (known.devices, known.machines, known.models) == (
            facts.devices,
            facts.machines,
            facts.models,
        )
        if known.is_asked and not facts.is_asked:
            return False
        return same and all(
            near(a, b, model.name, rules.band)
            for a, b in zip(known.windows, facts.windows, strict=True)
            for model in facts.models
        )

    def after(self, moved: tuple[str, ...], now: float) -> PlacementPast:
        """Return the past after models moved, without moves older than an hour, and with no
        placement that is known to be best."""
        kept = tuple(move for move in self.moves if now - move.at < HOUR_S)
        return PlacementPast(kept + tuple(PastMove(now, model) for model in moved))


def near(before: LoadWindow, after: LoadWindow, model: str, band: float) -> bool:
    """True if a model's requests and their tokens changed by no more than `band` and counting
    noise.

    The noise is twice the standard deviation of a Poisson process of n requests: 2 sqrt(n).
    """
    requests, others = before.requests(model), after.requests(model)
    part = band + 2 / sqrt(max(1.0, requests))
    if abs(requests - others) > part * requests + 1:
        return False
    one, other = before.of(model), after.of(model)
    if not requests or not others:
        return True
    return (
        abs(one.tokens_in - other.tokens_in) <= part * one.tokens_in
        and abs(one.tokens_out - other.tokens_out) <= part * one.tokens_out
    )
