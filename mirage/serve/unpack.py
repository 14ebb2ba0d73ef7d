"""A request's body as it was before it was compressed, never larger than it may be. Pure."""

from __future__ import annotations

import zlib

from mirage.serve.openai import ApiError
from mirage.units import size

WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Window argument of zlib for each ``Content-Encoding``."""
LARGEST_RATIO = 1032
"""Bytes that one of deflate may stand for."""
MOST_MEMBERS = 100
"""A gzip file may be several ones behind each other."""


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """The body, of at most `most` bytes, that came as ``Content-Encoding: encoding``.

    Takes as long as what may come out of it, and holds no lock of Python's meanwhile. Raises
    `ApiError`.
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
    """The most bytes that a body of `packed` bytes may unpack to."""
    return packed * LARGEST_RATIO


def too_large(most: int) -> ApiError:
    """Error 413 for a body of more than `most` bytes, as sent or once it is unpacked."""
    return ApiError(413, f"the body is larger than {size(most)}: send less")


def _window(name: str, body: bytes) -> int:
    """Some senders leave out the header of deflate."""
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
