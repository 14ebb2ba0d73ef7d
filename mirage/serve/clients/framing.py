"""Heads of which another reader may say that the request ends elsewhere. Pure.

The parser takes any version and any list of codings that ends with chunks. A proxy before this
server, or one that is asked for HTTP/0.9, reads something else.
"""

from __future__ import annotations

from collections.abc import Sequence

VERSIONS = ((1, 0), (1, 1))
CHUNKED = (1, 1)
"""First version of HTTP that has chunks."""


def framing_fault(version: tuple[int, int], codings: Sequence[str]) -> str:
    """Why a request is not read; empty if it is. `codings` are its `Transfer-Encoding` headers."""
    if version not in VERSIONS:
        return f"HTTP/{version[0]}.{version[1]} is not spoken here: use HTTP/1.1"
    if not codings:
        return ""
    if version < CHUNKED:
        return "HTTP/1.0 has no Transfer-Encoding: send a Content-Length"
    if len(codings) > 1 or codings[0].lower() != "chunked":
        return "Transfer-Encoding is something else than chunked: send chunks, or a Content-Length"
    return ""
