"""Too few requests to tell anything by. Pure."""

from __future__ import annotations

LEAST = 100
"""Requests of which P99 is not merely the slowest one."""


def too_few(requests: int) -> str | None:
    """Why figures of so many requests say nothing, and what to do; None if they may say something.

    Requests of one run are meant: repeats send the same ones.
    """
    if requests >= LEAST:
        return None
    return (
        f"So few requests ({requests}) tell nothing: P99 is the slowest of them, and what differs "
        f"is chance; take a longer window or trace, of {LEAST} requests at least"
    )
