"""``report.html``: one file that needs nothing else, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mirage.samples import PLACES
from mirage.tools.replay import pictures
from mirage.tools.replay.run import Run
from mirage.tools.replay.table import remarks
from mirage.tools.replay.timeline import growth
from mirage.tools.report import comparison, drawing
from mirage.tools.report.page import Picture, picture, template

TEMPLATE = "report.html.j2"


MEMORY: tuple[tuple[str, str, Callable[[Sequence[Run]], Figure]], ...] = (
    (
        "KV capacity and use",
        "Blocks granted (line) and in use (area) over time. Where the area meets the line, "
        "requests wait or are preempted.",
        pictures.kv_memory,
    ),
    (
        "Layers remapped",
        "Decoder layers whose memory serves as KV cache; they are streamed from host memory.",
        pictures.layers_remapped,
    ),
    (
        "Who holds the device",
        "Memory held by each tenant, parameters and KV cache together.",
        pictures.device_memory,
    ),
    ("Pressure", "Preemptions and waiting requests, all tenants together.", pictures.pressure),
)
TIERS: tuple[tuple[str, str, Callable[[Sequence[Run]], Figure]], ...] = (
    (
        "Prompts computed and found again",
        "Tokens of prompts so far: those computed, and above them those whose KV was found, by "
        "where it lay. What a preempted request computes again counts as well.",
        pictures.prompts,
    ),
    (
        "KV blocks to and from the tiers",
        "Copied so far, all tenants together.",
        pictures.below,
    ),
)
"""Where anything was found again, and where anything lies below the device."""
LATENCIES = (
    "Latency distributions",
    "Share of values at or under x; further left is better. The dotted line is P99. TPOT is a "
    "request's mean time per token after the first, ITL every single gap.",
    pictures.latencies,
)


def render(report: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """The page for a report and the runs it was built from."""
    policies = [column["policy"] for column in report["policies"]]
    return template(Path(__file__).with_name(TEMPLATE)).render(
        report=report,
        policies=policies,
        colours=[drawing.policy_colour(policies, policy) for policy in policies],
        table=comparison.rows(report["policies"], policies),
        tenants=_tenant_tables(report["policies"], policies),
        remarks=remarks(dict(report)),
        pictures=list(_pictures(_first_of_each(runs))),
    )


def _pictures(runs: Sequence[Run]) -> list[Picture]:
    kept = [run for run in runs if run.timeline and run.timeline.samples]
    found, copied = TIERS
    wanted = [
        (LATENCIES, runs),
        *((memory, kept) for memory in MEMORY),
        (found, kept if _any(kept, *(f"tokens_from_{place}" for place in PLACES)) else []),
        (copied, kept if _any(kept, "kv_bytes_up", "kv_bytes_down") else []),
    ]
    return [
        picture(title, note, partial(draw, shown)) for (title, note, draw), shown in wanted if shown
    ]


def _any(runs: Sequence[Run], *fields: str) -> bool:
    """Whether one of these totals grew in some run."""
    timelines = [run.timeline for run in runs if run.timeline]
    return any(
        any(growth(timeline, attrgetter(field)).values())
        for timeline in timelines
        for field in fields
    )


def _first_of_each(runs: Sequence[Run]) -> list[Run]:
    """Pictures show one run of each policy."""
    return list({run.policy: run for run in reversed(runs)}.values())[::-1]


def _tenant_tables(
    runs: Sequence[Mapping[str, Any]], policies: Sequence[str]
) -> dict[str, list[comparison.Row]]:
    names = dict.fromkeys(name for run in runs for name in run["tenants"])
    return {
        name: comparison.rows([run["tenants"].get(name, {}) for run in runs], policies)
        for name in names
    }
