"""Beginning of a trace file, by which its format is known."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import ijson
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
    file = io.BytesIO(begin)
    values = ijson.items(file, "item", use_float=True) if is_array(begin) else _decoded(file)
    with suppress(ijson.JSONError, msgspec.DecodeError, ValueError, RecursionError):
        yield from takewhile(lambda value: isinstance(value, dict), values)


def look(file: io.RawIOBase) -> tuple[bytes, Head]:
    """The bytes read, and what they say. No more is read than that takes: a pipe may be slow."""
    begin = b""
    while True:
        more = file.read(CHUNK)
        begin = (begin + (more or b"")).removeprefix(_BYTE_ORDER_MARK)
        line, ends, _ = begin.partition(b"\n")
        fields, whole = _first_object(begin)
        is_json = begin.lstrip()[:1] in (b"[", b"{")
        if not more or len(begin) >= MAX_HEAD or (whole if is_json else ends):
            return begin, Head(line.decode(errors="replace").strip(), fields)


def _decoded(lines: io.BytesIO) -> Iterator[Any]:
    """JSON values, one a line; the last line may be cut."""
    return (msgspec.json.decode(line) for line in lines if line.strip())


def _first_object(begin: bytes) -> tuple[dict[str, Any], bool]:
    """The fields of the first JSON object, and whether it ends in these bytes."""
    builder, depth, whole = ijson.ObjectBuilder(), 0, False
    outside = 1 if is_array(begin) else 0
    try:
        for event, value in ijson.basic_parse(io.BytesIO(begin), use_float=True):
            builder.event(event, value)
            depth += event.startswith("start_") - event.startswith("end_")
            if whole := depth <= outside and event == "end_map":
                break
    except (ijson.JSONError, ValueError):  # ValueError: of ijson's own Python code
        pass
    found = getattr(builder, "value", None)
    if outside and isinstance(found, list):
        found = found[0] if found else None
    return (found, whole) if isinstance(found, dict) else ({}, False)
