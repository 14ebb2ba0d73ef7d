"""Beginning of a trace file, by which its format is recognised."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import msgspec

from mirage.workload.formats.opened import CHUNK

MAX_HEAD = 2**20
"""Most bytes that are read to recognise a file's format."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Head:
    """Beginning of a file: its first line, and the fields of its first JSON object, if there is
    one.

    Fields beyond the first `MAX_HEAD` bytes are missing.
    """

    line: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    further: Callable[[], Iterator[dict[str, Any]]] = field(default=lambda: iter(()))
    """Function that returns the complete JSON objects in the file's first `source.MAX_FURTHER`
    bytes, the first object among them, without consuming these bytes.
    """


def is_array(begin: bytes) -> bool:
    """True if a file with these first bytes is a JSON array."""
    return begin.lstrip().startswith(b"[")


def objects(begin: bytes) -> Iterator[dict[str, Any]]:
    """JSON objects that are complete in these bytes, from an array or one a line."""
    values = _entries(begin) if is_array(begin) else _decoded(begin)
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        yield from takewhile(lambda value: isinstance(value, dict), values)


def look(file: io.RawIOBase) -> tuple[bytes, Head]:
    """Read the beginning of a file; return the bytes, and what they show. No more is read than
    needed, since a pipe may be slow.
    """
    begin = b""
    while True:
        more = file.read(CHUNK)
        begin = (begin + (more or b"")).removeprefix(_BYTE_ORDER_MARK)
        line, ends, _ = begin.partition(b"\n")
        is_json = begin.lstrip()[:1] in (b"[", b"{")
        fields, whole = _first_object(begin) if is_json else ({}, False)
        if not more or len(begin) >= MAX_HEAD or (whole if is_json else ends):
            return begin, Head(line.decode(errors="replace").strip(), fields)


def _entries(begin: bytes) -> Iterator[Any]:
    """JSON values of an array, which may be cut off."""
    from mirage.workload.formats import pieces

    with suppress(*pieces.MALFORMED):
        yield from pieces.entries(io.BytesIO(begin))


def _decoded(begin: bytes) -> Iterator[Any]:
    """JSON values, one a line; the last line may be cut off."""
    return (msgspec.json.decode(line) for line in io.BytesIO(begin) if line.strip())


def _first_object(begin: bytes) -> tuple[dict[str, Any], bool]:
    from mirage.workload.formats import pieces

    return pieces.first_object(begin, is_array(begin))
