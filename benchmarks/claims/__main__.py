"""Evaluate every row: print the table, write ``claims.json`` and the page.

    .venv/bin/python -m benchmarks.claims [--seeds 20-29] [--trace FILE] [--output DIR]

The page is ``docs/claims.md`` where that exists and seeds and arrivals are those it is made with;
else it goes to DIR. With ``--trace`` arrivals are windows of that file instead of drawn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.claims import page
from benchmarks.claims.expert_rows import BANDS as EXPERT_BANDS
from benchmarks.claims.harvest_rows import CLAIMS as HARVEST
from benchmarks.claims.judging import PAGE, SEEDS, evaluate
from benchmarks.claims.mirage_rows import BANDS, CLAIMS
from benchmarks.claims.tier_rows import BANDS as TIER_BANDS
from benchmarks.claims.tier_rows import CLAIMS as TIERS
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.report.files import make_room
from mirage.tools.simulate.command import parse_seeds
from mirage.workload.chosen import located

ROWS = CLAIMS + TIERS + HARVEST + BANDS + TIER_BANDS + EXPERT_BANDS


def main() -> None:
    asked = arguments()
    with exits(), terminate_like_interrupt():
        trace = None if asked.trace is None else located(str(asked.trace))
        check(parse_seeds(asked.seeds), asked.output, asked.processes, trace)


def check(seeds: Sequence[int], output: Path, processes: int | None, trace: Path | None) -> None:
    """Check the claims, and write their page. Raises `ConfigError` if `output` cannot be written or
    a scene cannot be simulated, `TraceError` for a trace that cannot be read.
    """
    make_room(output, [output / "claims.json"])
    rows = evaluate(ROWS, seeds, processes, trace, Console(stderr=True))
    output.mkdir(parents=True, exist_ok=True)
    written = json.dumps(rows, indent=1, sort_keys=True)
    (output / "claims.json").write_text(written + "\n", encoding="utf-8")
    usual = PAGE.exists() and list(seeds) == SEEDS and trace is None
    made = PAGE if usual else output / PAGE.name
    made.write_text(page.markdown(rows, seeds, trace), encoding="utf-8")
    page.show(rows, Console())
    Console().out(f"Written: {output / 'claims.json'}, {made}", highlight=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--seeds", default="20-29", help="as 0-4, 3 or 0,2,7")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a trace with arrivals")
    parser.add_argument("--output", type=Path, default=Path("out/claims"), metavar="DIR")
    parser.add_argument("--processes", type=int, help="runs at a time; one per core if left out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
