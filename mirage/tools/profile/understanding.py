"""Figures of the machine, from measurements of the child processes, made once or several times.
Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from mirage.profiles import Model
from mirage.protocol import ModelShape
from mirage.tools.profile.fitting import Fitted, Line, fit, line, step
from mirage.tools.profile.plan import SteadyLoad
from mirage.tools.profile.serving import Serving, between, serving
from mirage.tools.profile.spread import Spread, spread

Answers = Mapping[str, Any]
UNSTEADY = 0.25
"""Distance between quartiles, as a part of the median, above which the machine was busy with other
work.
"""
ANOTHER = 0.25
"""Mean number of other processes that wanted a core above which the machine was not quiet."""
POOR_FIT = 0.15


@dataclass(frozen=True)
class Measured:
    """All figures of the machine, in seconds, bytes, and bytes or operations a second."""

    fitted: Fitted
    link_bytes_per_s: float
    mixed_bytes_per_s: float
    one_way: Line
    """Seconds of a copy as a line over its bytes."""
    mixed: Line
    load: Spread | None
    """Seconds to load a layer, over all engines; None if no layer can move."""
    apply: Spread
    message: Spread
    reserved_bytes: int
    """Device memory beside parameters and KV cache, of the engine with the most."""
    serving: Serving
    shapes: dict[str, ModelShape]


def understood(
    engines: Sequence[Mapping[str, Answers]],
    transfers: Sequence[Answers],
    messages: Sequence[Answers],
    served: Sequence[Answers],
    models: Mapping[str, Model],
    loads: Mapping[str, tuple[SteadyLoad, SteadyLoad]],
    cores: int,
) -> Measured:
    """Figures fitted to all measurements. Each sequence has an element for each time that all was
    measured; one of `engines` has the answers by tenant. `models` has every tenant.
    """
    named = [pair for once in engines for pair in once.items()]
    steps = [
        step(models[name], sample, engine["clock"])
        for name, engine in named
        for sample in engine["samples"]
    ]
    copies = list(chain.from_iterable(once["copies"] for once in transfers))
    one_way, mixed = _line(copies, "one_way_s"), _line(copies, "mixed_s")
    link = _link(named, one_way)
    taken = [seconds for _, engine in named for seconds in engine["load_s"]]
    return Measured(
        fitted=fit(steps),
        link_bytes_per_s=link,
        mixed_bytes_per_s=link * min(1.0, one_way.each_s / mixed.each_s),
        one_way=one_way,
        mixed=mixed,
        load=spread(taken) if taken else None,
        apply=spread([seconds for _, engine in named for seconds in engine["apply_s"]]),
        message=spread([seconds for once in messages for seconds in once["message_s"]]),
        reserved_bytes=max(engine["reserved_bytes"] for _, engine in named),
        serving=between(
            [serving(e, s, loads, cores) for e, s in zip(engines, served, strict=True)]
        ),
        shapes={name: msgspec.convert(engine["shape"], ModelShape) for name, engine in named},
    )


def doubts(
    others: Mapping[str, float], engines: Mapping[str, Answers], fitted: Fitted
) -> list[str]:
    """Sentences with reasons to doubt the figures. `others` has the mean number of other processes
    by part.
    """
    busy = {name: count for name, count in others.items() if count > ANOTHER}
    found = []
    if busy:
        worst = max(busy, key=lambda name: busy[name])
        found.append(
            f"the machine was not quiet: while {worst} was measured, {busy[worst]:.1f} other "
            "processes wanted a core on average: end them and run with --fresh"
        )
    for name, engine in engines.items():
        widths = [spread(sample["times_s"]).width for sample in engine["samples"]]
        if (middle := statistics.median(widths)) > UNSTEADY:
            found.append(
                f"steps of {name} differ by {100 * middle:.0f} % from quartile to quartile: what "
                "else runs, or a changing clock, is in these figures"
            )
    if fitted.error > POOR_FIT:
        found.append(
            f"the fitted steps miss the measured ones by {100 * fitted.error:.0f} % on average: "
            "what is simulated with them will, too"
        )
    return found


def _line(copies: Sequence[Answers], key: str) -> Line:
    return line([(copy["bytes"], statistics.median(copy[key])) for copy in copies])


def _link(named: Sequence[tuple[str, Answers]], one_way: Line) -> float:
    """Bytes a second at which layers are loaded, or at which bytes are copied if no layer can
    move.
    """
    rates = [e["layer_bytes"] / statistics.median(e["load_s"]) for _, e in named if e["load_s"]]
    return statistics.median(rates) if rates else 1 / one_way.each_s
