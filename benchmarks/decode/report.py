"""Results of a decoding batch under each policy: ``result.json``, and a table on the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.decode.metrics import Metrics
from benchmarks.decode.setup import DecodeSetup
from mirage.tools.simulate.report import SCHEMA_VERSION, summary
from mirage.units import GIB
from mirage.workload.lengths import lengths

Result = dict[str, Any]
COLUMNS = (
    ("output_throughput", "tokens/s", 1.0, 0),
    ("mean_tpot_ms", "TPOT, ms", 1.0, 2),
    ("p95_tpot_ms", "P95", 1.0, 2),
    ("hit_percent", "in time, %", 1.0, 1),
    ("blocks_from_device", "stayed", 1.0, 0),
    ("blocks_from_early", "came early", 1.0, 0),
    ("blocks_from_host", "host", 1.0, 0),
    ("blocks_from_ssd", "SSD", 1.0, 0),
    ("kv_bytes_up", "GiB up", GIB, 1),
    ("kv_bytes_down", "down", GIB, 1),
    ("saved_s", "s saved", 1.0, 1),
)
"""Key, heading, divisor and digits."""
WIDTH = 116
"""Width of the table; a narrower terminal wraps its lines, since figures that are cut say nothing.
"""


def build(setup: DecodeSetup, seeds: Sequence[int], runs: Sequence[Metrics]) -> Result:
    """The whole result as data for JSON, from one run of each policy with each of `seeds`."""
    by_policy = {name: [r for r in runs if r["policy"] == name] for name in setup.policies}
    shape = setup.experiment.decode.lengths
    return {
        "schema_version": SCHEMA_VERSION,
        "decoding": setup.experiment.model_dump(mode="json"),
        "hardware": setup.hardware.model_dump(mode="json"),
        "model": setup.model.model_dump(mode="json"),
        "block_bytes": setup.block_bytes,
        "lengths": {"name": shape, **lengths(shape).model_dump()},
        "seeds": list(seeds),
        "policies": list(by_policy),
        "figures": {name: summary(parts) for name, parts in by_policy.items()},
    }


def as_json(result: Result) -> str:
    """Text of the result. NaN and infinity, which JSON does not have, are refused."""
    return json.dumps(result, indent=1, sort_keys=True, allow_nan=False) + "\n"


def show(result: Result, output: Path, console: Console) -> None:
    """Print the means over the seeds, and the paths of the files."""
    title = escape(result["decoding"]["title"])
    made = Table("", *(heading for _, heading, *_ in COLUMNS), title=title)
    made.columns[0].no_wrap = True
    for column in made.columns[1:]:
        column.justify = "right"
    for policy, figures in result["figures"].items():
        made.add_row(policy, *(_cell(figures[key], by, digits) for key, _, by, digits in COLUMNS))
    console.width = max(console.width, WIDTH)
    console.print(made)
    seeds = result["seeds"]
    said = f"Seed {seeds[0]}" if len(seeds) == 1 else f"Means of {len(seeds)} seeds"
    files = f"{output / 'report.html'}, {output / 'result.json'}"
    console.out(f"{said}. Report: {files}", highlight=False)


def _cell(spread: Mapping[str, Any] | None, divisor: float, digits: int) -> str:
    return "–" if spread is None else f"{spread['mean'] / divisor:,.{digits}f}"
