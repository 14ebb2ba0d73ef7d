"""Prediction of a change: the last hour's requests, simulated under the present configuration and
under the changed one, beside the measured figures.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from mirage.config import ConfigError
from mirage.control.roster.needs import NeverServedError
from mirage.control.targets import DoesNotFitError
from mirage.serve.whatif.figures import LatencySpread, TenantFigures, measured, simulated, span_s
from mirage.serve.whatif.forms import PastRow, Scene, WhatIfFacts
from mirage.serve.whatif.world import arrivals, world
from mirage.simulate.world import Observer

LEAST = 20
"""Least requests for which a prediction is made."""
MOST = 20_000
"""Most requests that are simulated, the newest ones."""
LIMIT_S = 60.0
"""Most seconds of computing for one simulation."""
LOOK = 256
"""Number of events between two looks at the clock."""


class NoPrediction(Exception):
    """Refusal to predict; the message is one line that says why."""


class TenantPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one tenant, measured and simulated.

    `now` is None for a new tenant, `after` for one that is removed.
    """

    measured: TenantFigures | None
    now: TenantFigures | None
    after: TenantFigures | None
    steps: str
    """Origin of the times of its steps, in words."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted effects of a change of the configuration on the latencies of all tenants."""

    requests: int
    span_s: float
    """Seconds from the first request's arrival to the last one's end."""
    tenants: dict[str, TenantPrediction]
    notes: tuple[str, ...]


class _Limited(Observer):
    """Observer that ends a simulation by `NoPrediction` after more than `limit_s` seconds."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._until, self._events = clock() + limit_s, 0

    def happened(self) -> None:
        self._events += 1
        if self._events % LOOK == 0 and self._clock() > self._until:
            raise NoPrediction(f"its simulation takes longer than {self._limit_s:g} s")


def predict(
    facts: WhatIfFacts,
    past: Sequence[PastRow],
    *,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Prediction:
    """Predict latencies before and after a change, by simulating past requests under both.

    Each simulation has `limit_s` seconds of `clock`. Raises `NoPrediction` if it takes longer, if
    there are fewer than `LEAST` requests, if the step times of a tenant with requests are unknown,
    if a model does not fit into its share, or if the changed configuration serves no tenant.
    """
    served = facts.now.tenants
    cached = {name for name, one in served.items() if one.shape.max_extents}
    known = sorted((row for row in past if row.tenant in cached), key=lambda row: row.t)
    rows = known[-MOST:]
    if len(rows) < LEAST:
        raise NoPrediction(f"fewer than {LEAST} requests in the last hour")
    if not facts.after.tenants:
        raise NoPrediction("no tenant of it can be served")
    now = _run(facts.now, rows, limit_s, clock)
    after = _run(facts.after, rows, limit_s, clock)
    of: dict[str, list[PastRow]] = defaultdict(list)
    for row in rows:
        of[row.tenant].append(row)
    preempted = facts.preempted if rows == known else {}
    before = {name: measured(of[name], preempted.get(name)) for name in of}
    return Prediction(
        requests=len(rows),
        span_s=span_s(rows),
        tenants={
            name: TenantPrediction(
                measured=before.get(name),
                now=now.get(name),
                after=after.get(name),
                steps=_source(name, facts),
            )
            for name in (served | facts.after.tenants)
        },
        notes=(*facts.notes, *_notes(rows, served.keys() - cached)),
    )


def _run(
    scene: Scene, rows: Sequence[PastRow], limit_s: float, clock: Callable[[], float]
) -> dict[str, TenantFigures]:
    asked = arrivals(scene, rows)
    if unknown := [name for name in asked if scene.tenants[name].steps is None]:
        raise NoPrediction(f"how long a step of {', '.join(unknown)} takes is not known yet")
    try:
        made = world(scene, asked)
        made.observer = _Limited(limit_s, clock)
        made.run()
    except (DoesNotFitError, NeverServedError, ConfigError) as error:
        raise NoPrediction(str(error)) from None
    made.check()
    return {one.name: simulated(one, asked.get(one.name, [])) for one in made.engines}


def _source(name: str, facts: WhatIfFacts) -> str:
    one = facts.after.tenants.get(name) or facts.now.tenants[name]
    return one.steps.source if one.steps is not None else "nothing"


def _notes(rows: Sequence[PastRow], left: Collection[str]) -> Iterator[str]:
    if left:
        yield f"{', '.join(sorted(left))}: a model without a KV cache is simulated without requests"
    if guessed := sum(not row.counted for row in rows):
        yield (
            f"of {guessed} of {len(rows)} requests no usage was told: their tokens are guessed by "
            "bytes and events"
        )


def errors(prediction: Prediction) -> dict[str, dict[str, float]]:
    """Ratio of simulated to measured medians under the present configuration, by tenant and
    figure.
    """
    return {
        name: found
        for name, one in prediction.tenants.items()
        if one.now is not None
        and one.measured is not None
        and (found := dict(_ratios(one.now, one.measured)))
    }


def _ratios(now: TenantFigures, before: TenantFigures) -> Iterator[tuple[str, float]]:
    for figure in ("ttft_ms", "tpot_ms", "whole_ms"):
        ours: LatencySpread | None = getattr(now, figure)
        theirs: LatencySpread | None = getattr(before, figure)
        if ours is not None and theirs is not None and theirs.p50:
            yield figure, ours.p50 / theirs.p50
