"""Times that a client may take for a request, by section `http`. Pure."""

from __future__ import annotations

from mirage.config import HttpSection


def body_until(begun: float, read: int, http: HttpSection) -> float:
    """Time at which a body is late that began at `begun`, after `read` bytes have come.

    Both times are seconds of one clock. Announced bytes do not count: otherwise a client that sends
    nothing could wait the longer, the more it announces.
    """
    return begun + http.body_s + read / http.body_rate


def late_body(read: int, http: HttpSection) -> str:
    """Message of a 408 for a body that came too slowly."""
    return (
        f"the body took more than {http.body_s:g} s and 1 s for each {http.body_rate:,} bytes, "
        f"{read:,} bytes came: send it faster"
    )


def late_head(http: HttpSection) -> str:
    """Message of a 408 for a head that came too slowly."""
    return f"the request's head took more than {http.head_s:g} s: send it at once"
