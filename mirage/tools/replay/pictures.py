"""The report's pictures; each function draws one.

All policies of a picture share their axes, and a policy or a tenant has the same colour in all
pictures. The pictures of memory take runs that have a timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
from matplotlib.figure import Figure

from mirage.samples import TenantSample
from mirage.tools.replay.metrics import LATENCIES, latencies_ms
from mirage.tools.replay.run import PolicyRun
from mirage.tools.replay.series import series, summed, tenants_of
from mirage.tools.replay.timeline import RecordedTimeline, growth
from mirage.tools.report import drawing
from mirage.tools.report.document import picture
from mirage.tools.report.drawing import Array, Grid, tenant_colour
from mirage.units import MIB

PROMPTS = {
    "prefill_tokens": ("#9aa1ab", "computed"),
    "tokens_from_device": ("#2456c7", "found on the device"),
    "tokens_from_peer": ("#14866d", "on a peer"),
    "tokens_from_host": ("#d98a1f", "in host memory"),
    "tokens_from_ssd": ("#a13d8f", "on the SSD"),
}
"""Counters of samples that together make up all prompt tokens, with colour and label."""

Value = Callable[[TenantSample], float]


@picture(
    "KV capacity and use",
    "Blocks granted (line) and in use (area) over time. Where the area meets the line, requests "
    "wait or are preempted.",
)
def kv_memory(runs: Sequence[PolicyRun]) -> Figure:
    """KV blocks over time: a row for each tenant, a column for each policy."""
    tenants = tenants_of(runs)
    figure, cells = drawing.over_time(len(tenants), _policies(runs), height=1.7)
    for row, tenant in zip(cells, tenants, strict=True):
        for axes, run in zip(row, runs, strict=True):
            t, used = series(_timeline(run), tenant, lambda sample: sample.kv_used_blocks)
            _, granted = series(_timeline(run), tenant, lambda sample: sample.kv_blocks)
            drawing.capacity(axes, t, used, granted, tenant_colour(tenants, tenant))
        row[0].set_ylabel(f"{tenant}\nKV blocks")
        row[0].set_ylim(bottom=0)
    cells[0][0].legend(loc="best", fontsize=8)
    return figure


@picture(
    "Layers remapped",
    "Decoder layers whose memory serves as KV cache; they are streamed from host memory.",
)
def layers_remapped(runs: Sequence[PolicyRun]) -> Figure:
    """Layers remapped over time, stacked by tenant: a column for each policy."""
    figure, cells = _by_tenant(runs, lambda sample: sample.layers_remapped, "layers remapped")
    drawing.counts_from_zero(cells[0][0])
    return figure


@picture("Who holds the device", "Memory held by each tenant, parameters and KV cache together.")
def device_memory(runs: Sequence[PolicyRun]) -> Figure:
    """Device memory held over time, stacked by tenant, under a line at the device's size."""
    figure, cells = _by_tenant(runs, lambda sample: sample.held_bytes / MIB, "MiB held", "device")
    cells[0][0].set_ylim(bottom=0)
    return figure


@picture("Pressure", "Preemptions and waiting requests, all tenants together.")
def pressure(runs: Sequence[PolicyRun]) -> Figure:
    """Preemptions and waiting requests over time: a line for each policy."""
    figure, cells = _summed(
        runs,
        {
            "Preemptions so far": lambda run: _since_start(run, attrgetter("preemptions")),
            "Requests waiting": lambda run: summed(_timeline(run), attrgetter("waiting")),
        },
    )
    for axes in cells[0]:
        drawing.counts_from_zero(axes)
    return figure


@picture(
    "Prompts computed and found again",
    "Tokens of prompts so far: those computed, and above them those whose KV was found, by where "
    "it lay. What a preempted request computes again counts as well.",
)
def prompts(runs: Sequence[PolicyRun]) -> Figure:
    """Prompt tokens so far, stacked by computed ones and by the place of found ones: a column for
    each policy.
    """
    some = [f for f in PROMPTS if any(_grows(run, f) for run in runs)]
    colours, labels = zip(*(PROMPTS[field] for field in some), strict=True)
    figure, cells = drawing.over_time(1, _policies(runs), height=2.3)
    for axes, run in zip(cells[0], runs, strict=True):
        drawn = [_since_start(run, attrgetter(field)) for field in some]
        heights = [values for _, values in drawn]
        axes.stackplot(
            drawn[0][0], *heights, colors=colours, labels=labels, alpha=0.8, lw=0, step="post"
        )
    cells[0][0].set_ylabel("tokens of prompts")
    cells[0][0].set_ylim(bottom=0)
    drawing.legend_below(figure, cells[0][0])
    return figure


@picture("KV blocks to and from the tiers", "Copied so far, all tenants together.")
def below(runs: Sequence[PolicyRun]) -> Figure:
    """KV bytes copied to and from the tiers so far: a line for each policy."""
    figure, cells = _summed(
        runs,
        {
            "KV brought up so far, MiB": lambda run: _since_start(run, _mib("kv_bytes_up")),
            "copied down so far, MiB": lambda run: _since_start(run, _mib("kv_bytes_down")),
        },
    )
    for axes in cells[0]:
        axes.set_ylim(bottom=0)
    return figure


@picture(
    "Latency distributions",
    "Share of values at or under x; further left is better. The dotted line is P99. TPOT is a "
    "request's mean time per token after the first, ITL every single gap.",
)
def latencies(runs: Sequence[PolicyRun]) -> Figure:
    """Distributions of TTFT, TPOT, ITL and E2EL: a line for each policy."""
    policies = _policies(runs)
    measured = [latencies_ms(run.outcomes) for run in runs]
    figure, cells = drawing.grid(2, 2, height=2.5, sharey="all")
    for axes, name in zip(chain.from_iterable(cells), LATENCIES, strict=True):
        for policy, values in zip(policies, measured, strict=True):
            if values[name]:
                x, share = drawing.cumulative(np.maximum(values[name], drawing.SHORTEST_MS))
                colour = drawing.policy_colour(policies, policy)
                axes.step(x, share, where="post", color=colour, lw=1.8, label=policy)
    drawing.shares(cells, LATENCIES)
    if cells[0][0].get_legend_handles_labels()[0]:
        cells[0][0].legend(loc="best")
    return figure


def _policies(runs: Sequence[PolicyRun]) -> list[str]:
    return [run.policy for run in runs]


def _timeline(run: PolicyRun) -> RecordedTimeline:
    assert run.timeline
    return run.timeline


def _grows(run: PolicyRun, field: str) -> bool:
    return any(growth(_timeline(run), attrgetter(field)).values())


def _mib(field: str) -> Value:
    return lambda sample: getattr(sample, field) / MIB


def _since_start(run: PolicyRun, value: Value) -> tuple[Array, Array]:
    t, values = summed(_timeline(run), value)
    return t, values - values[:1]


def _by_tenant(
    runs: Sequence[PolicyRun], value: Value, label: str, device: str | None = None
) -> tuple[Figure, Grid]:
    """A value over time stacked by tenant, with a column for each policy, and a line at the
    device's size if `device` labels it.
    """
    tenants = tenants_of(runs)
    colours = [tenant_colour(tenants, tenant) for tenant in tenants]
    figure, cells = drawing.over_time(1, _policies(runs), height=2.3)
    for axes, run in zip(cells[0], runs, strict=True):
        drawn = [series(_timeline(run), tenant, value) for tenant in tenants]
        heights = [np.nan_to_num(values) for _, values in drawn]
        axes.stackplot(
            drawn[0][0], *heights, colors=colours, labels=tenants, alpha=0.75, lw=0, step="post"
        )
        if device:
            top = _timeline(run).device_bytes / MIB
            axes.axhline(top, color="#20242b", lw=1, ls="--", label=device)
    cells[0][0].set_ylabel(label)
    drawing.legend_below(figure, cells[0][0])
    return figure, cells


def _summed(
    runs: Sequence[PolicyRun], titled: Mapping[str, Callable[[PolicyRun], tuple[Array, Array]]]
) -> tuple[Figure, Grid]:
    """Figure of values summed over tenants, and its cells: one for each title, with a line for each
    policy."""
    figure, cells = drawing.grid(1, len(titled), height=2.4, sharex="all")
    for axes, (title, values) in zip(cells[0], titled.items(), strict=True):
        for run in runs:
            colour = drawing.policy_colour(_policies(runs), run.policy)
            axes.step(*values(run), where="post", color=colour, lw=1.6, label=run.policy)
        axes.set_title(title)
        axes.set_xlabel("s")
    cells[0][0].legend(loc="best")
    return figure, cells
