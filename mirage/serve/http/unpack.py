"""Decompression of a request's body, within a limit of its size. Pure."""

from __future__ import annotations

import zlib

from mirage.serve.api.openai import ApiError
from mirage.units import size

WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Window argument of zlib for each ``Content-Encoding``."""
LARGEST_RATIO = 1032
"""Most bytes that one byte of deflate can stand for."""
MOST_MEMBERS = 100
"""Most members of a gzip body, which may consist of several."""


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """Decompressed body of at most `most` bytes, that came with ``Content-Encoding: encoding``.

    The time depends on the size of the result; the interpreter lock is not held meanwhile. Raises
    `ApiError` for another encoding, for a body that cannot be decompressed, and for one that is
    longer.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in WINDOWS:
        raise ApiError(415, f"Content-Encoding {encoding!r}: use gzip, deflate or none")
    try:
        return b"".join(_members(body, _window(name, body), most))
    except zlib.error as error:
        raise ApiError(400, f"the body cannot be read as {name}: {error}") from None


def most_unpacked(packed: int) -> int:
    """Most bytes that a body of `packed` bytes can have when it is decompressed."""
    return packed * LARGEST_RATIO


def too_large(most: int) -> ApiError:
    """Error 413 for a body of more than `most` bytes, as sent or once it is unpacked."""
    return ApiError(413, f"the body is larger than {size(most)}: send less")


def _window(name: str, body: bytes) -> int:
    """Window argument of zlib for a body; some senders omit the header of deflate."""
    bare = name == "deflate" and body[:1] != b"" and body[0] & 0xF != 8
    return -zlib.MAX_WBITS if bare else WINDOWS[name]


def _members(body: bytes, window: int, most: int) -> list[bytes]:
    parts: list[bytes] = []
    while body:
        if len(parts) == MOST_MEMBERS:
            raise zlib.error(f"it has more than {MOST_MEMBERS} members")
        stream = zlib.decompressobj(window)
        parts.append(stream.decompress(body, most + 1))
        most -= len(parts[-1])
        if most < 0:
            raise too_large(most + sum(map(len, parts)))
        if not stream.eof:
            raise zlib.error("it ends too early")
        body = stream.unused_data
    return parts
