"""Requests whose end another parser may see elsewhere (request smuggling). Pure.

The parser used here takes any version, and any list of codings that ends with ``chunked``. A proxy
before this server, or a client of HTTP/0.9, reads such a head differently.
"""

from __future__ import annotations

from collections.abc import Sequence

VERSIONS = ((1, 0), (1, 1))
CHUNKED = (1, 1)
"""First version of HTTP that has chunked bodies."""


def framing_fault(version: tuple[int, int], codings: Sequence[str]) -> str:
    """Reason to refuse a request's head; empty if it is clear.

    `codings` are its Transfer-Encoding headers.
    """
    if version not in VERSIONS:
        return f"HTTP/{version[0]}.{version[1]} is not spoken here: use HTTP/1.1"
    if not codings:
        return ""
    if version < CHUNKED:
        return "HTTP/1.0 has no Transfer-Encoding: send a Content-Length"
    if len(codings) > 1 or codings[0].lower() != "chunked":
        return "Transfer-Encoding is something else than chunked: send chunks, or a Content-Length"
    return ""
