"""Times that a client may take for a request, by the section `http`. Pure."""

from __future__ import annotations

from mirage.config import HttpSection


def body_until(begun: float, read: int, http: HttpSection) -> float:
    """Time at which a body is late of which `read` bytes have come since `begun`, in seconds.

    Bytes that are announced do not count: who sends none would be waited for the longer, the more
    it announces.
    """
    return begun + http.body_s + read / http.body_rate


def late_body(read: int, http: HttpSection) -> str:
    """The words of a 408."""
    return (
        f"the body took more than {http.body_s:g} s and 1 s for each {http.body_rate:,} bytes, "
        f"{read:,} bytes came: send it faster"
    )


def late_head(http: HttpSection) -> str:
    """The words of a 408."""
    return f"the request's head took more than {http.head_s:g} s: send it at once"
