"""The report's pictures; one function is one picture.

All policies of a picture share their axes, and a policy or a tenant has one colour
throughout. The pictures of memory take runs that have a timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mirage.samples import TenantSample
from mirage.tools.replay.metrics import LATENCIES, latencies_ms
from mirage.tools.replay.run import Run
from mirage.tools.replay.series import series, summed, tenants_of
from mirage.tools.replay.timeline import growth
from mirage.tools.report.drawing import (
    counts_from_zero,
    cumulative,
    grid,
    legend_below,
    log_scale,
    over_time,
    policy_colour,
    tenant_colour,
)
from mirage.units import MIB

PROMPTS = {
    "prefill_tokens": ("#9aa1ab", "computed"),
    "tokens_from_device": ("#2456c7", "found on the device"),
    "tokens_from_peer": ("#14866d", "on a peer"),
    "tokens_from_host": ("#d98a1f", "in host memory"),
    "tokens_from_ssd": ("#a13d8f", "on the SSD"),
}
"""Fields of samples that add up to the prompts, with colour and label."""
COPIED = {"kv_bytes_up": "KV brought up so far, MiB", "kv_bytes_down": "copied down so far, MiB"}
SHORTEST_MS = 0.1
"""Latencies under this are drawn at it: tokens that came in one piece have no gap."""


def kv_memory(runs: Sequence[Run]) -> Figure:
    """KV blocks granted (line) and in use (area): a row per tenant, a column per policy."""
    tenants = tenants_of(runs)
    figure, cells = over_time(len(tenants), _named(runs), height=1.7)
    for row, tenant in zip(cells, tenants, strict=True):
        colour = tenant_colour(tenants, tenant)
        for axes, run in zip(row, runs, strict=True):
            assert run.timeline
            t, used = series(run.timeline, tenant, lambda sample: sample.kv_used_blocks)
            _, granted = series(run.timeline, tenant, lambda sample: sample.kv_blocks)
            axes.fill_between(t, used, step="post", color=colour, alpha=0.35, lw=0, label="in use")
            axes.step(t, granted, where="post", color=colour, lw=1.6, label="granted")
        row[0].set_ylabel(f"{tenant}\nKV blocks")
        row[0].set_ylim(bottom=0)
    cells[0][0].legend(loc="best", fontsize=8)
    return figure


def layers_remapped(runs: Sequence[Run]) -> Figure:
    """Layers whose memory was given away (alpha), stacked by tenant, a column per policy."""
    figure, cells = over_time(1, _named(runs), height=2.3)
    for axes, run in zip(cells[0], runs, strict=True):
        _stack(axes, run, tenants_of(runs), lambda sample: sample.alpha)
    cells[0][0].set_ylabel("layers remapped")
    counts_from_zero(cells[0][0])
    legend_below(figure, cells[0][0])
    return figure


def device_memory(runs: Sequence[Run]) -> Figure:
    """Bytes held by each tenant, stacked, under the line of what the device has."""
    figure, cells = over_time(1, _named(runs), height=2.3)
    for axes, run in zip(cells[0], runs, strict=True):
        _stack(axes, run, tenants_of(runs), lambda sample: sample.held_bytes / MIB)
        assert run.timeline
        device = run.timeline.device_bytes / MIB
        axes.axhline(device, color="#20242b", lw=1, ls="--", label="device")
    cells[0][0].set_ylabel("MiB held")
    cells[0][0].set_ylim(bottom=0)
    legend_below(figure, cells[0][0])
    return figure


def pressure(runs: Sequence[Run]) -> Figure:
    """Preemptions so far and requests waiting, over all tenants: a line per policy."""
    policies = [run.policy for run in runs]
    figure, (cells,) = grid(1, 2, height=2.4, sharex="all")
    for run in runs:
        assert run.timeline
        colour = policy_colour(policies, run.policy)
        t, total = summed(run.timeline, lambda sample: sample.preemptions)
        cells[0].step(t, total - total[:1], where="post", color=colour, lw=1.8, label=run.policy)
        t, waiting = summed(run.timeline, lambda sample: sample.waiting)
        cells[1].step(t, waiting, where="post", color=colour, lw=1.4, label=run.policy)
    for axes, title in zip(cells, ("Preemptions so far", "Requests waiting"), strict=True):
        axes.set_title(title)
        axes.set_xlabel("s")
        counts_from_zero(axes)
    cells[0].legend(loc="best")
    return figure


def prompts(runs: Sequence[Run]) -> Figure:
    """Tokens of prompts so far, computed (below) and by where they were found: a column per
    policy."""
    figure, cells = over_time(1, _named(runs), height=2.3)
    some = [field for field in PROMPTS if any(_grows(run, field) for run in runs)]
    colours, labels = zip(*(PROMPTS[field] for field in some), strict=True)
    for axes, run in zip(cells[0], runs, strict=True):
        assert run.timeline
        drawn = [summed(run.timeline, attrgetter(field)) for field in some]
        heights = [values - values[:1] for _, values in drawn]
        axes.stackplot(
            drawn[0][0], *heights, colors=colours, labels=labels, alpha=0.8, lw=0, step="post"
        )
    cells[0][0].set_ylabel("tokens of prompts")
    cells[0][0].set_ylim(bottom=0)
    legend_below(figure, cells[0][0])
    return figure


def _grows(run: Run, field: str) -> bool:
    assert run.timeline
    return any(growth(run.timeline, attrgetter(field)).values())


def below(runs: Sequence[Run]) -> Figure:
    """MiB of KV blocks copied so far: a line per policy."""
    policies = [run.policy for run in runs]
    figure, (cells,) = grid(1, 2, height=2.4, sharex="all")
    for axes, (field, title) in zip(cells, COPIED.items(), strict=True):
        for run in runs:
            assert run.timeline
            t, nbytes = summed(run.timeline, attrgetter(field))
            colour = policy_colour(policies, run.policy)
            mib = (nbytes - nbytes[:1]) / MIB
            axes.step(t, mib, where="post", color=colour, lw=1.8, label=run.policy)
        axes.set_title(title)
        axes.set_xlabel("s")
        axes.set_ylim(bottom=0)
    cells[0].legend(loc="best")
    return figure


def latencies(runs: Sequence[Run]) -> Figure:
    """The share of values at or under x, in ms: TTFT, TPOT, ITL, E2EL, a line per policy."""
    policies = [run.policy for run in runs]
    measured = [latencies_ms(run.outcomes) for run in runs]
    figure, cells = grid(2, 2, height=2.5, sharey="all")
    for axes, name in zip(chain.from_iterable(cells), LATENCIES, strict=True):
        for policy, values in zip(policies, measured, strict=True):
            if values[name]:
                x, share = cumulative(np.maximum(values[name], SHORTEST_MS))
                colour = policy_colour(policies, policy)
                axes.step(x, share, where="post", color=colour, lw=1.8, label=policy)
        axes.axhline(0.99, color="#9aa1ab", lw=0.8, ls=":")
        axes.set_title(f"{name.removesuffix('_ms').upper()}, ms")
        log_scale(axes)
    for row in cells:
        row[0].set_ylabel("share of values")
    cells[0][0].set_ylim(0, 1.02)
    if cells[0][0].get_legend_handles_labels()[0]:
        cells[0][0].legend(loc="best")
    return figure


def _named(runs: Sequence[Run]) -> list[str]:
    return [run.policy for run in runs]


def _stack(
    axes: Any, run: Run, tenants: Sequence[str], value: Callable[[TenantSample], float]
) -> None:
    assert run.timeline
    drawn = [series(run.timeline, tenant, value) for tenant in tenants]
    heights = [np.nan_to_num(values) for _, values in drawn]
    colours = [tenant_colour(tenants, tenant) for tenant in tenants]
    axes.stackplot(
        drawn[0][0], *heights, colors=colours, labels=tenants, alpha=0.75, lw=0, step="post"
    )
