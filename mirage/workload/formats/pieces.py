"""JSON that is parsed in pieces. Only this module imports ijson, and it is loaded for JSON traces
alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from mirage.errors import InputRefused
from mirage.workload.formats.opened import CHUNK

try:
    import ijson
except ImportError:
    raise InputRefused(
        "a trace in JSON needs ijson: run pip install '.[tools]' in the checkout of MIRAGE"
    ) from None

MALFORMED = (ijson.JSONError, ValueError, RecursionError)
"""Errors that ijson raises for invalid JSON; ValueError comes from its own Python code."""


def entries(file: io.RawIOBase | io.BytesIO) -> Iterator[Any]:
    """Values of a file that is one JSON array. Their iteration raises one of `MALFORMED` for
    invalid JSON.
    """
    return iter(ijson.items(file, "item", use_float=True, buf_size=CHUNK))


def first_object(begin: bytes, in_array: bool) -> tuple[dict[str, Any], bool]:
    """Fields of the first JSON object in a file's first bytes, and True if it is complete in these.

    If it is cut off or malformed, the fields before that place; none if there is no object.
    `in_array`: the bytes begin an array of objects.
    """
    builder, depth, whole = ijson.ObjectBuilder(), 0, False
    outside = 1 if in_array else 0
    with suppress(*MALFORMED):
        for event, value in ijson.basic_parse(io.BytesIO(begin), use_float=True):
            builder.event(event, value)
            depth += event.startswith("start_") - event.startswith("end_")
            if whole := depth <= outside and event == "end_map":
                break
    found = getattr(builder, "value", None)
    if outside and isinstance(found, list):
        found = found[0] if found else None
    return (found, whole) if isinstance(found, dict) else ({}, False)
