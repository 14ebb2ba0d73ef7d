"""A body on its way to its engine, by pieces: what its transport cannot send yet, it copies."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping

from mirage.units import KIB

PIECE_BYTES = 256 * KIB


def in_pieces(body: bytes, headers: MutableMapping[str, str]) -> bytes | AsyncIterator[bytes]:
    """Payload of `body` for aiohttp; one of several pieces tells its length in `headers`."""
    if len(body) <= PIECE_BYTES:
        return body
    headers["Content-Length"] = str(len(body))
    return _pieces(body)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), PIECE_BYTES):
        yield body[begin : begin + PIECE_BYTES]
