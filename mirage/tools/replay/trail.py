"""Digest of an output that shows whether and where two outputs differ; kept for every request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32


class Trail(NamedTuple):
    """Digest of an output's tokens, or of its characters if the server returned no token ids."""

    digest: bytes
    """Digest of the whole output; only equal outputs have equal ones."""
    checks: bytes
    """Two bytes for each token or character: a checksum of the output up to and including it."""


def trail(text: str, token_ids: Sequence[int] = ()) -> Trail:
    """Digest of an output, and a checksum after each of its `token_ids`, or after each character of
    `text` if there are no ids.
    """
    units = token_ids or [ord(letter) for letter in text]
    written = array("I", units).tobytes()
    checks, so_far = array("H"), 0
    for begin in range(0, len(written), UNIT):
        so_far = crc32(written[begin : begin + UNIT], so_far)
        checks.append(so_far & 0xFFFF)
    kind = b"tokens" if token_ids else b"text"
    return Trail(blake2b(written, digest_size=16, person=kind).digest(), checks.tobytes())


UNIT = array("I").itemsize
CHECK = array("H").itemsize


def parting(one: Trail, other: Trail) -> int | None:
    """Position, from 0, of the first token or character that differs; None for equal outputs.

    Once in 65,536 a difference is missed at its position, and then found at a later one.
    """
    if one.digest == other.digest:
        return None
    shortest = min(len(one.checks), len(other.checks))
    for begin in range(0, shortest, CHECK):
        if one.checks[begin : begin + CHECK] != other.checks[begin : begin + CHECK]:
            return begin // CHECK
    return shortest // CHECK


NOTHING = trail("")
