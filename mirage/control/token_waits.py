"""Time that waits for layers add to tokens, by two reports of one engine. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mirage.protocol import Report


class TokenWaits(NamedTuple):
    """Waits of steps for layers and experts between two reports of one engine, in seconds."""

    wait_s: float
    """Seconds for which steps waited for layers and experts that were loaded."""
    token_s: float
    """Seconds by which waits for layers and experts delayed tokens, summed over all tokens: each
    sequence of a step waits as long as the step.

    Steps are assumed to be alike, so it is the wait times the decoded tokens, divided by the steps.
    """
    tokens: int
    """Number of decoded tokens, without tokens of prompts."""


def token_waits(before: Report, after: Report) -> TokenWaits | None:
    """Return the waits for layers and experts between two reports of one engine.

    None if no step ran in between, or if the engine's counters began anew.
    """
    if (steps := after.steps - before.steps) <= 0:
        return None
    wait_s = after.stall_s - before.stall_s
    tokens = _decoded(after) - _decoded(before)
    return TokenWaits(wait_s, wait_s * tokens / steps, tokens)


def _decoded(report: Report) -> int:
    return report.tokens - report.prefill_tokens
