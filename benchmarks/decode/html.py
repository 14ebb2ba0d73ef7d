"""``report.html`` of a decoding batch over tiers: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.decode import pictures
from mirage.tools.report import comparison, drawing
from mirage.tools.report.comparison import Metric
from mirage.tools.report.page import picture, template
from mirage.tools.simulate import html as simulation
from mirage.tools.simulate.html import Row, hardware, settings, with_ranges
from mirage.units import GIB, MIB

TEMPLATE = "decode.html.j2"
METRICS = (
    Metric("output_throughput", "output tokens per s", "high"),
    Metric("mean_tpot_ms", "TPOT, mean, ms", "low", digits=2),
    Metric("p95_tpot_ms", "TPOT P95, ms", "low", digits=2),
    Metric("waited_s", "waited for blocks, s", "low", digits=2),
    Metric("hit_percent", "blocks there in time, %", "high", digits=1),
    Metric("blocks_from_device", "blocks that had stayed on the device"),
    Metric("blocks_from_early", "blocks that came ahead of need"),
    Metric("blocks_from_host", "blocks waited for, from host memory"),
    Metric("blocks_from_ssd", "blocks waited for, from the SSD"),
    Metric("kv_bytes_up", "brought up, GiB", divide=GIB, digits=2),
    Metric("kv_bytes_down", "copied down, GiB", divide=GIB, digits=2),
    Metric("link_percent", "of the link's time, %", digits=1),
    Metric("saved_s", "computing time saved, s", digits=1),
)
MEANING = {
    "lru": "the least recently used block goes down first",
    "frequency": "the least often used block goes down first, with aging",
    "reads": "the block that was read by the fewest steps goes down first",
    "static": "blocks stay where they were first written",
    "attention": "blocks far from the newest token go down first, and a layer's blocks come while "
    "the layer before computes",
    "prefetch": "blocks come before their requests' turns, as many as fit the link (TierKV's "
    "Algorithm 1 with its Eq. 1)",
    "oracle": "a bound: the fewest loads there can be, each as early as the link carries it",
}
PICTURES = (
    (
        "Throughput",
        "More tokens and shorter steps are better. The whisker is the range over the seeds.",
        pictures.throughput,
    ),
    (
        "Hits by tier",
        "Where the blocks lay that a request needs, when its turn in the batch began. What lies in "
        "host memory or on the SSD then is waited for.",
        pictures.hits_by_tier,
    ),
    (
        "Stalls",
        "A step's time: what it computes, the same under all policies, and what it waits.",
        pictures.stalls,
    ),
    (
        "Over the links",
        "What was copied between the device and the memory below it. What never changes goes down "
        "once, and comes up as often as it is needed anew.",
        pictures.traffic,
    ),
)

Result = Mapping[str, Any]


def render(result: Result) -> str:
    """The page for a result (see `decode_report.build`); the same for the same result."""
    policies = result["policies"]
    drawn = {
        "policies": policies,
        "seeds": result["seeds"],
        "results": {name: {"figures": result["figures"][name]} for name in policies},
    }
    asked, model = result["decoding"], result["model"]
    beside = Path(simulation.__file__).parent
    return template(Path(__file__).with_name(TEMPLATE), beside).render(
        result=result,
        asked=asked,
        policies=policies,
        colours=[drawing.policy_colour(policies, policy) for policy in policies],
        table=rows(result),
        pictures=[picture(title, note, partial(draw, drawn)) for title, note, draw in PICTURES],
        meanings={policy: MEANING[policy] for policy in policies},
        block_mib=result["block_bytes"] / MIB,
        model=model,
        settings=dict(settings(asked)),
        hardware=hardware(result["hardware"]),
    )


def rows(result: Result) -> list[Row]:
    """A row per figure, a cell per policy; with ranges if there are several seeds."""
    return with_ranges(result, partial(_rows, result))


def _rows(result: Result, of: str) -> list[comparison.Row]:
    parts = [
        {key: spread and spread[of] for key, spread in result["figures"][policy].items()}
        for policy in result["policies"]
    ]
    return comparison.rows(parts, result["policies"], METRICS)
