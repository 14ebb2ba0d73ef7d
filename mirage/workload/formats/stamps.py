"""Timestamps of the form ``2023-11-16 18:17:03.9799600``."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from mirage.workload.formats.checks import NANOSECONDS
from mirage.workload.formats.request import TraceError

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def nanoseconds(text: str, where: str) -> int:
    """Nanoseconds since 1970; a timestamp without a zone is UTC. Raises `TraceError` for a text of
    another form.

    Parsed by hand, because `strptime` refuses seven digits of a fraction and a float loses them.
    """
    match = _STAMP.fullmatch(text)
    try:
        if not match:
            raise ValueError
        zone = "" if match[3] in (None, "Z") else match[3]
        stamp = datetime.fromisoformat(match[1] + zone)
        stamp = stamp.replace(tzinfo=stamp.tzinfo or UTC)
        seconds = int(stamp.timestamp())
    except (ValueError, OverflowError):
        raise TraceError(
            f"{where}: timestamp {text[:80]!r} is not of the form 2023-11-16 18:17:03.9799600"
        ) from None
    return seconds * NANOSECONDS + int((match[2] or "").ljust(9, "0"))
