"""Kinds of values that several sections have: numbers, sizes, times, paths, and values of JSON."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mirage.paths import expanded
from mirage.problems import shown

MOST = 2**31 - 1
"""Largest `Count` or `Whole`: vLLM and the system keep most whole numbers in 32 bits."""
Count = Annotated[int, Field(gt=0, le=MOST, strict=True)]
"""A whole number from 1 to `MOST`; ``true`` and ``3.0`` are refused."""
Whole = Annotated[int, Field(ge=0, le=MOST, strict=True)]
"""A whole number from 0 to `MOST`; ``true`` and ``3.0`` are refused."""
LARGEST_BYTES = 2**60
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(value: Any) -> int:
    """Bytes of ``"512MiB"``, ``"2G"`` or a whole number of bytes. Units are powers of 1024, however
    they are spelled: K, KB and KiB are the same. Raises `ValueError` for any other value.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(value), re.IGNORECASE)
    if not match:
        raise ValueError(
            f"{shown(value)} is not a size: write bytes or a number with KiB, MiB or GiB"
        )
    return int(Decimal(match[1]) * UNITS[match[2].upper()])


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=LARGEST_BYTES)]


def _named(path: Any) -> Any:
    """Raise `ValueError` for an empty path, which would mean the folder of the file."""
    if path == "":
        raise ValueError("it is empty: name a path")
    return path


FilePath = Annotated[Path, Field(strict=False), BeforeValidator(expanded), BeforeValidator(_named)]
"""A path in which ``~`` and ``$NAME`` are replaced as a shell does."""


SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h)\s*")
SPAN_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_span(value: Any) -> Any:
    """Seconds of ``"90s"``, ``"5m"`` or ``"2h"``; None for ``"never"``; a value that is no text is
    returned as it is. Raises `ValueError` for other text.
    """
    if value == "never":
        return None
    if not isinstance(value, str):
        return value
    if (match := SPAN.fullmatch(value)) is None:
        raise ValueError(f"{shown(value)} is no time: write seconds, as 5m or 2h, or never")
    return float(match[1]) * SPAN_UNITS[match[2]]


Span = Annotated[Annotated[float, Field(ge=0, le=1e9)] | None, BeforeValidator(parse_span)]
"""Seconds, written as a number or as `parse_span` reads them; None is never."""


def plain(value: Any) -> Any:
    """Return `value` if JSON can express it. Raises `ValueError` for other values, such as dates
    and infinite numbers, and for keys of a mapping that are not text.
    """
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no number that JSON has: write another")
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{shown(odd[0])} is no text: put keys in quotes")
        for each in value.values():
            plain(each)
    elif isinstance(value, list):
        for each in value:
            plain(each)
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"{shown(value)} is no value of JSON: put text in quotes")
    return value


Plain = Annotated[Any, BeforeValidator(plain)]
"""Value that goes into a body or a command line as JSON."""
