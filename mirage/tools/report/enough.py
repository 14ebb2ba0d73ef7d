"""Warning that figures come from too few requests to be meaningful. Pure."""

from __future__ import annotations

LEAST = 100
"""Fewest requests for which P99 is not simply the slowest one."""


def too_few(requests: int) -> str | None:
    """Warning and advice if figures of so many requests are not meaningful; None if they are.

    `requests` counts one run, since repeats send the same requests.
    """
    if requests >= LEAST:
        return None
    return (
        f"So few requests ({requests}) tell nothing: P99 is the slowest of them, and what differs "
        f"is chance; take a longer window or trace, of {LEAST} requests at least"
    )
