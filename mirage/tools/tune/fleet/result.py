"""Number of devices that are enough with the freedoms of each `SizeStep`, as JSON, a table,
sentences and an HTML page. It is the mean over the windows of the trace, with a 95 % interval.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from mirage.tools.report.document import Document, Section, facts, table, verdict
from mirage.tools.report.intervals import mean
from mirage.tools.tune.fleet.steps import STEPS
from mirage.tools.tune.fleet.trial import ENOUGH, ENOUGH_EACH

HEAD = ("step", "devices", "saves", "by window", "what it may do")
ENOUGH_IS = (
    f"A number of devices is enough if {ENOUGH:.0%} of a window's requests, and "
    f"{ENOUGH_EACH:.0%} of each model's, keep the limits under some placement that was tried."
)
BOUNDS = (
    "Counts are upper bounds: a placement that nobody tried may need fewer devices. Intervals are "
    "of the mean over the windows, at 95 %. Nothing fails, and each window begins without a queue."
)

Result = Mapping[str, Any]
Counts = Mapping[str, int | None]
"""Number of devices for each `SizeStep`, by its name, for one window; None if none is enough."""


def build(
    title: str, slo: str, seconds: float, runs: Sequence[Mapping[str, Any]], command: Sequence[str]
) -> dict[str, Any]:
    """The whole result, ready for JSON. Each of the `runs` has the numbers of devices for one
    window on one kind of device; `seconds` is the length of a window.
    """
    kinds = list(dict.fromkeys(run["hardware"] for run in runs))
    by_kind = {kind: [run for run in runs if run["hardware"] == kind] for kind in kinds}
    return {
        "title": title,
        "slo": slo,
        "window_s": seconds,
        "requests": [run["requests"] for run in by_kind[kinds[0]]],
        "trials": sum(run["trials"] for run in runs),
        "kinds": {kind: _steps([run["devices"] for run in of]) for kind, of in by_kind.items()},
        "command": list(command),
    }


def as_json(result: Result) -> str:
    """The result as JSON text; the same bytes for the same result."""
    return json.dumps(result, indent=1, sort_keys=True, allow_nan=False) + "\n"


def rows(steps: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row of the table for each step, for one kind of device."""
    for step in STEPS:
        found = steps[step.name]
        each = ", ".join("none" if n is None else str(n) for n in found["windows"])
        yield step.name, _said(found["devices"]), _said(found["saves"]), each, step.meaning


def sentences(result: Result) -> Iterator[str]:
    """A sentence for each kind of device: the step with the fewest devices, and the saving by each
    step.
    """
    for kind, steps in result["kinds"].items():
        known = [step.name for step in STEPS if steps[step.name]["devices"] is not None]
        if not known:
            yield f"{kind}: no number of devices that was tried is enough; see the limits"
            continue
        best = min(known, key=lambda name: steps[name]["devices"]["mean"])
        first, fewest = steps[STEPS[0].name]["devices"], steps[best]["devices"]
        parts = [
            f"{step.name} {_said(steps[step.name]['saves'])}"
            for step in STEPS[1:]
            if steps[step.name]["saves"] is not None
        ]
        whole = f"{kind}: {_said(fewest)} devices by {best}, instead of {_said(first)}"
        yield f"{whole}; saved by {', '.join(parts)}"


def page(result: Result) -> str:
    """The result as an HTML page."""
    counts = ", ".join(f"{n:,}" for n in result["requests"])
    told = {
        "limits": result["slo"],
        "windows": f"{len(result['requests'])} of {result['window_s']:g} s: {counts} requests",
        "placements simulated": f"{result['trials']:,}",
        "command": " ".join(result["command"]),
    }
    sections = [
        Section(f"On {kind}", [table(HEAD, rows(steps), "text")])
        for kind, steps in result["kinds"].items()
    ]
    return Document(
        f"MIRAGE: devices for {result['title']}",
        result["title"],
        [
            "How many devices this traffic needs, and what each step saves. Simulated.",
            *(verdict(line, "open") for line in sentences(result)),
        ],
        [*sections, Section("How it was found", [ENOUGH_IS, BOUNDS, facts(told.items())])],
    ).render()


def _steps(counts: Sequence[Counts]) -> dict[str, Any]:
    """Number of devices of each step, and its saving against the step before in windows where both
    have a number.
    """
    found = {STEPS[0].name: _step(counts, STEPS[0].name, [])}
    for before, step in pairwise(STEPS):
        pairs = [(of[before.name], of[step.name]) for of in counts]
        saved = [one - other for one, other in pairs if one is not None and other is not None]
        found[step.name] = _step(counts, step.name, saved)
    return found


def _step(counts: Sequence[Counts], name: str, saved: Sequence[int]) -> dict[str, Any]:
    each = [of[name] for of in counts]
    known = [number for number in each if number is not None]
    return {"windows": each, "devices": _interval(known), "saves": _interval(saved)}


def _interval(values: Sequence[int]) -> dict[str, float | None] | None:
    if not values:
        return None
    found = mean(values)
    return {"mean": found.value, "half": found.half}


def _said(interval: Mapping[str, float | None] | None) -> str:
    if interval is None:
        return "-"
    half = interval["half"]
    return f"{interval['mean']:.1f}" + (f" ± {half:.1f}" if half is not None else "")
