"""``report.html`` of a decoding batch over tiers: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from markupsafe import Markup

from benchmarks.decode import pictures
from mirage.tools.report import comparison
from mirage.tools.report.comparison import ComparisonRow, Metric
from mirage.tools.report.document import Document, Picture, Section, facts, points, side_by_side
from mirage.tools.simulate.html import hardware, ranges, seeds, settings, with_ranges
from mirage.units import GIB, MIB

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
    Picture(
        "Throughput",
        "More tokens and shorter steps are better. The whisker is the range over the seeds.",
        pictures.throughput,
    ),
    Picture(
        "Hits by tier",
        "Where the blocks lay that a request needs, when its turn in the batch began. What lies in "
        "host memory or on the SSD then is waited for.",
        pictures.hits_by_tier,
    ),
    Picture(
        "Stalls",
        "A step's time: what it computes, the same under all policies, and what it waits.",
        pictures.stalls,
    ),
    Picture(
        "Over the links",
        "What was copied between the device and the memory below it. What never changes goes down "
        "once, and comes up as often as it is needed anew.",
        pictures.traffic,
    ),
)
MODELLED = (
    "A step reads the KV of all its requests on the device, so what lies below comes up first. "
    "Links carry what they carry: a copy waits for those before it.",
    "A full block never changes, so what came up leaves its copy below until somebody else needs "
    "the place.",
    "Requests finish and new ones come; prompts are computed elsewhere. What takes turns is the "
    "same under all policies.",
    "Engines keep all blocks of a running request on the device: there whole requests are "
    "suspended and resumed.",
)

Result = Mapping[str, Any]


def render(result: Result) -> str:
    """HTML page of a result of `benchmarks.decode.report.build`; equal results give equal pages."""
    policies, asked = result["policies"], result["decoding"]
    drawn = {
        "policies": policies,
        "seeds": result["seeds"],
        "results": {name: {"figures": result["figures"][name]} for name in policies},
    }
    meanings = facts((policy, MEANING[policy]) for policy in policies)
    table = side_by_side(_note(result), policies, rows(result), {})
    return Document(
        f"MIRAGE simulation: {asked['title']}",
        asked["title"],
        [_what(result)],
        [
            Section("Side by side", [*table, Markup("<h3>The policies</h3>"), meanings]),
            *(picture.section(drawn) for picture in PICTURES),
            hardware(result["hardware"]),
            Section("The settings", [_blocks(result), facts(settings(asked), "pairs")]),
            Section("What is modelled, and what is not", [points(MODELLED)]),
        ],
    ).render()


def _what(result: Result) -> str:
    decode, times = result["decoding"]["decode"], result["decoding"]["decode"]["oversubscription"]
    held = "The device holds the blocks that fit beside the weights."
    if times is not None:
        held = f"All requests’ blocks are {times:g} times those that the device holds."
    return (
        f"{result['model']['title']} on {result['hardware']['title']}, {decode['size']} of "
        f"{decode['requests']} requests decode at once, {seeds(result)}. {held} These figures are "
        "computed, not measured."
    )


def _note(result: Result) -> str:
    policies = result["policies"]
    return (
        f"{ranges(result)}The best of a row is marked; the small figure beside it is the ratio to "
        f"{'static' if 'static' in policies else policies[0]}. The same requests take the same "
        "turns under every policy."
    )


def _blocks(result: Result) -> str:
    tokens, model = result["decoding"]["decode"]["block_tokens"], result["model"]
    return (
        f"The file with all its defaults. A block of {tokens} tokens is "
        f"{result['block_bytes'] / MIB:.2f} MiB of {model['title']} ({model['source']})."
    )


def rows(result: Result) -> list[ComparisonRow]:
    """A row for each figure, with a cell for each policy; with ranges if there are several
    seeds.
    """
    return with_ranges(result, partial(_rows, result))


def _rows(result: Result, of: str) -> list[ComparisonRow]:
    parts = [
        {key: spread and spread[of] for key, spread in result["figures"][policy].items()}
        for policy in result["policies"]
    ]
    return comparison.rows(parts, result["policies"], METRICS)
