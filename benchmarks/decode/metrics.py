"""One run of a decoding batch in numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import Any

from benchmarks.decode.outcome import Machine, Outcome
from mirage.simulate.roofline import PS

Metrics = dict[str, Any]
MS = PS / 1000
WHERE = ("device", "early", "host", "ssd")
"""Places of a block when its request's turn began; `early`: it had come ahead of need."""


def metrics(outcome: Outcome, machine: Machine, recompute_ps: Callable[[int], int]) -> Metrics:
    """Figures of a run; one is None if the policy has no such figure."""
    duration = sum(outcome.durations) / PS
    steps = len(outcome.durations)
    up, down = (n * machine.sizes.block_bytes for n in (outcome.blocks_up, outcome.blocks_down))
    found = sum(outcome.found.values())
    near = outcome.found["device"] + outcome.found["early"]
    saved = sum(recompute_ps(number) * n for number, n in outcome.below.items())
    return {
        "steps": steps,
        "duration": duration,
        "total_output_tokens": outcome.tokens,
        "output_throughput": outcome.tokens / duration,
        "mean_tpot_ms": duration * 1e3 / steps,
        "p95_tpot_ms": percentile(outcome.durations, 95) / MS,
        "waited_s": (sum(outcome.durations) - sum(outcome.computed)) / PS,
        **{f"blocks_from_{where}": outcome.found[where] for where in WHERE},
        "hit_percent": 100 * near / found if found else 100.0,
        "kv_bytes_up": up,
        "kv_bytes_down": down,
        "link_percent": 100 * up / (duration * machine.host.bytes_per_s),
        "crowded_percent": 100 * outcome.crowded_steps / steps,
        "saved_s": saved / PS if outcome.below or not outcome.found["early"] else None,
        "window_percent": 100 * up / machine.host.bytes_per_s / (fsum(outcome.computed) / PS),
    }


def percentile(values: list[int], percent: float) -> int:
    """The smallest value that at least `percent` per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(percent) // 100) - 1)]
