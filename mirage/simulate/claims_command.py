"""``mirage simulate --claims``: every row evaluated, printed, and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mirage.simulate import claims_page
from mirage.simulate.claims import PAGE, SEEDS, evaluate
from mirage.simulate.claims_experts import BANDS as EXPERT_BANDS
from mirage.simulate.claims_harvest import CLAIMS as HARVEST
from mirage.simulate.claims_rows import BANDS, CLAIMS
from mirage.simulate.claims_tiers import BANDS as TIER_BANDS
from mirage.simulate.claims_tiers import CLAIMS as TIERS

ROWS = CLAIMS + TIERS + HARVEST + BANDS + TIER_BANDS + EXPERT_BANDS


def command(
    seeds: Sequence[int],
    output: Path,
    processes: int | None,
    trace: Path | None,
    console: Console,
) -> None:
    """Evaluate every row; print the table, write ``claims.json`` and the page.

    The page is ``docs/claims.md`` where that exists and seeds and arrivals are those it is made
    with; else it goes to `output`. Raises `ConfigError`, `TraceError`.
    """
    rows = evaluate(ROWS, seeds, processes, trace, console)
    output.mkdir(parents=True, exist_ok=True)
    written = json.dumps(rows, indent=1, sort_keys=True)
    (output / "claims.json").write_text(written + "\n", encoding="utf-8")
    usual = PAGE.exists() and list(seeds) == SEEDS and trace is None
    page = PAGE if usual else output / PAGE.name
    page.write_text(claims_page.markdown(rows, seeds, trace), encoding="utf-8")
    claims_page.show(rows, Console())
    Console().out(f"Written: {output / 'claims.json'}, {page}", highlight=False)
