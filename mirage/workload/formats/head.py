"""Beginning of a trace file, by which its format is known."""

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
"""Bytes that are looked at to tell a file's format."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Head:
    """Beginning of a file: its first line, and the fields of its first JSON object, if it has one.

    Fields beyond `MAX_HEAD` bytes are missing.
    """

    line: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    further: Callable[[], Iterator[dict[str, Any]]] = field(default=lambda: iter(()))
    """Returns the JSON objects in some more bytes of the file, before any is read as a row."""


def is_array(begin: bytes) -> bool:
    """True if a file with these first bytes is one JSON array."""
    return begin.lstrip().startswith(b"[")


def objects(begin: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects that lie whole in these bytes, of an array or one a line."""
    values = _entries(begin) if is_array(begin) else _decoded(begin)
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        yield from takewhile(lambda value: isinstance(value, dict), values)


def look(file: io.RawIOBase) -> tuple[bytes, Head]:
    """The bytes read, and what they say. No more is read than that takes: a pipe may be slow."""
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
    """JSON values of one array, which may be cut."""
    from mirage.workload.formats import pieces

    with suppress(*pieces.MALFORMED):
        yield from pieces.entries(io.BytesIO(begin))


def _decoded(begin: bytes) -> Iterator[Any]:
    """JSON values, one a line; the last line may be cut."""
    return (msgspec.json.decode(line) for line in io.BytesIO(begin) if line.strip())


def _first_object(begin: bytes) -> tuple[dict[str, Any], bool]:
    from mirage.workload.formats import pieces

    return pieces.first_object(begin, is_array(begin))
