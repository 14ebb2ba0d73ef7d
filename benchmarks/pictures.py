"""Pictures of a replay's report as PNG, for the documentation.

python benchmarks/pictures.py out/demo-tiers/report.json docs/pictures/demo-tiers prompts turns

This writes docs/pictures/demo-tiers-prompts.png, with the tokens of prompts that were computed, and
of those that were found, by their place, over the seconds of each policy's first run; and
docs/pictures/demo-tiers-turns.png, with TTFT of the turns. `memory` shows the device memory of each
tenant.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from matplotlib.figure import Figure

from mirage.samples import SCHEMA_VERSION, Sample, TenantSample, TenantShape
from mirage.tools.replay import pictures
from mirage.tools.replay.run import PolicyRun
from mirage.tools.replay.timeline import RecordedTimeline
from mirage.tools.report.drawing import grid, log_scale, policy_colour, style

TURNS = {"ttft_first_ms": "First turns, ms", "ttft_later_ms": "Later turns, ms"}


def timeline(kept: Mapping[str, Any]) -> RecordedTimeline:
    """Timeline of a replay, rebuilt from its report."""

    def sample(number: int) -> dict[str, TenantSample]:
        found = {}
        for name, fields in kept["tenants"].items():
            values = {field: column[number] for field, column in fields.items()}
            if None not in values.values():
                found[name] = TenantSample(**values)
        return found

    samples = [Sample(t, sample(number)) for number, t in enumerate(kept["t"])]
    shapes = msgspec.convert(kept["shapes"], dict[str, TenantShape])
    return RecordedTimeline(samples, kept["device_bytes"], shapes, SCHEMA_VERSION)


def turns(columns: Sequence[Mapping[str, Any]]) -> Figure:
    """Picture of the times to a first token of each policy, P50 (dot) and P99 (line); further left
    is better.
    """
    policies = [column["policy"] for column in columns]
    figure, (cells,) = grid(1, 2, height=1.6, sharex="all", sharey="all")
    for axes, (key, title) in zip(cells, TURNS.items(), strict=True):
        for place, column in enumerate(reversed(columns)):
            colour = policy_colour(policies, column["policy"])
            middle, high = column[f"p50_{key}"], column[f"p99_{key}"]
            axes.plot([middle, high], [place, place], color=colour, lw=1.2)
            axes.scatter([middle], [place], color=colour, s=60)
            axes.scatter([high], [place], color=colour, marker="|", s=120)
        axes.set_yticks(range(len(policies)), policies[::-1])
        axes.set_ylim(-0.6, len(policies) - 0.4)
        axes.set_title(f"{title}: TTFT P50 (dot) to P99 (line)")
        log_scale(axes)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of a replay's report.")
    parser.add_argument("report", type=Path)
    parser.add_argument("stem", help="where to, without the picture's name and .png")
    parser.add_argument("names", nargs="+", choices=["prompts", "turns", "memory"])
    asked = parser.parse_args()
    report = json.loads(asked.report.read_text())
    told = [run for run in report["runs"] if run["repeat"] == 1 and run["timeline"]]
    runs = [
        PolicyRun(run["policy"], [], [], run["duration"], timeline(run["timeline"])) for run in told
    ]
    with style():
        drawn = {
            "prompts": lambda: pictures.prompts.draw(runs),
            "turns": lambda: turns(report["policies"]),
            "memory": lambda: pictures.device_memory.draw(runs),
        }
        for name in asked.names:
            figure = drawn[name]()
            figure.savefig(f"{asked.stem}-{name}.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
