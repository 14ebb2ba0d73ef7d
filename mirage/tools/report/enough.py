"""Warning that figures come from too few requests to mean anything. Pure."""

from __future__ import annotations

LEAST = 100
"""Requests of which P99 is not merely the slowest one."""


def too_few(requests: int) -> str | None:
    """Warning if figures of so many requests mean nothing, and what to do; None if they may.

    `requests` are those of one run: repeats send the same ones.
    """
    if requests >= LEAST:
        return None
    return (
        f"So few requests ({requests}) tell nothing: P99 is the slowest of them, and what differs "
        f"is chance; take a longer window or trace, of {LEAST} requests at least"
    )
