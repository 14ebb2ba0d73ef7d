"""Latency and throughput with the definitions of ``vllm bench serve``.

TTFT: sending to first token. E2EL: sending to last token. TPOT: ``(E2EL - TTFT) / (out - 1)`` per
request with at least two tokens. ITL: the gaps between tokens, pooled over requests. (A paper's
"time between tokens" may be either of the last two.) Requests that failed, or that the client gave
up, are counted and otherwise left out. Goodput: requests per second that met every limit of an
`Slo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mirage.tools.replay.client import Outcome
from mirage.tools.report.slo import Slo

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
OF_SESSIONS = ("ttft_first_ms", "ttft_later_ms")
"""TTFT of first and of later turns; measured only for traces with sessions."""
Value = float | int | None


def summarize(
    outcomes: Sequence[Outcome], duration_s: float, slo: Slo | None = None
) -> dict[str, Value]:
    """Counts, rates per second of `duration_s`, and mean, P50, P99 of each latency in ms.

    A latency without values is None, not 0; so is goodput without an `slo`.
    """
    met = None if slo is None else sum(map(slo.met, outcomes))
    abandoned = sum(outcome.abandoned for outcome in outcomes)
    done = [outcome for outcome in outcomes if outcome.error is None]
    tokens = sum(outcome.output_tokens for outcome in done)
    return {
        "requests": len(outcomes),
        "completed": len(done),
        "failed": len(outcomes) - len(done) - abandoned,
        "abandoned": abandoned,
        "duration": round(duration_s, 3),
        "total_input_tokens": sum(outcome.prompt_tokens for outcome in done),
        "total_output_tokens": tokens,
        "request_throughput": _rate(len(done), duration_s),
        "output_throughput": _rate(tokens, duration_s),
        "slo_met": met,
        "goodput": None if met is None else _rate(met, duration_s),
        **_statistics(latencies_ms(done) | _by_turn(done)),
    }


def latencies_ms(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """All values in ms of each of `LATENCIES`, of completed requests only."""
    values: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for outcome in outcomes:
        if outcome.error is not None:
            continue
        values["ttft_ms"].append(outcome.ttft_s * 1e3)
        values["e2el_ms"].append(outcome.e2el_s * 1e3)
        values["itl_ms"].extend(gap * 1e3 for gap in outcome.itl_s)
        if outcome.output_tokens > 1:
            spread = outcome.e2el_s - outcome.ttft_s
            values["tpot_ms"].append(spread / (outcome.output_tokens - 1) * 1e3)
    return values


def _by_turn(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """TTFT in ms of first turns and of later turns; empty if there are no later ones."""
    values: dict[str, list[float]] = {name: [] for name in OF_SESSIONS}
    if not any(outcome.call.turn for outcome in outcomes):
        return values
    first, later = OF_SESSIONS
    for outcome in outcomes:
        values[later if outcome.call.turn else first].append(outcome.ttft_s * 1e3)
    return values


def _statistics(latencies: Mapping[str, list[float]]) -> dict[str, Value]:
    figures: dict[str, Value] = {}
    for name, values in latencies.items():
        figures[f"mean_{name}"] = round(float(np.mean(values)), 3) if values else None
        for percent in (50, 99):
            figure = round(float(np.percentile(values, percent)), 3) if values else None
            figures[f"p{percent}_{name}"] = figure
    return figures


def _rate(count: int, duration_s: float) -> float:
    return round(count / duration_s, 3) if duration_s > 0 else 0.0
