"""The log of an engine: how far its start has come, and its last error."""

from __future__ import annotations

import os
import re
from pathlib import Path

ERROR_LINE = re.compile(r"\b(\w+(?:\.\w+)*(?:Error|Exception)|error|ERROR)\b\s*:")
NO_ERROR = re.compile(r"\b(WARNING|INFO|DEBUG) \d\d-\d\d ")
LOG_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) )?(?:ERROR \S+ \S+ \[\S+\] )?")
ANY_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) )?(?:[A-Z]+ \d\d-\d\d \S+ \[\S+\] )?")
CONTROLS = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Colours and other orders to a terminal: lines are shown on those of operators."""
MAX_LINE = 300
SHORT_LINE = 100
TAIL_BYTES = 65536
ERROR_BYTES = 1 << 20
"""Bytes at the end of a log that are searched for the error: a log may have gigabytes."""
LOOKED_AT = 1000
"""Characters of a line in which an error is looked for: the search takes the square of them."""
PROGRESS_LINE = re.compile(
    r"\b(?:captur|compil|download|initializ|load|process|profil|warm)ing\b|\d %|\d%", re.IGNORECASE
)
"""Lines of an engine's log that tell how far its start has come."""


def last_progress(log: Path, start: int = 0) -> str:
    """The newest `PROGRESS_LINE` of a log from byte `start` on, without what vLLM puts before it.

    Of a bar that is drawn over and over, the newest.
    """
    lines = reversed(_last_lines(log, start, TAIL_BYTES))
    bare = (ANY_PREFIX.sub("", CONTROLS.sub("", line).strip(), count=1) for line in lines)
    telling = next((line for line in bare if PROGRESS_LINE.search(line)), "")
    return " ".join(telling.split())[:SHORT_LINE]


def last_error(log: Path, start: int = 0) -> str | None:
    """The most telling line of an engine's log from byte `start` on: its last error.

    Only the last `ERROR_BYTES` are looked at. vLLM's server reports "Engine core initialization
    failed" after the engine has said why, so lines of the engine core come first; pydantic says
    what is wrong a line later.
    """
    lines = [CONTROLS.sub("", line[:LOOKED_AT]) for line in _last_lines(log, start, ERROR_BYTES)]
    said = [i for i, line in enumerate(lines) if not NO_ERROR.search(line)]
    errors = [i for i in said if ERROR_LINE.search(_bare(lines[i]))]
    causes = [i for i in errors if lines[i].startswith("(EngineCore")] or errors
    if not causes:
        return None
    words = _bare(lines[causes[-1]])
    if "validation error" in words:
        words = " ".join(_bare(line).strip() for line in lines[causes[-1] :][1:2]) or words
    return words.strip()[:MAX_LINE]


def _last_lines(log: Path, start: int, most: int) -> list[str]:
    """Lines of a log from byte `start` on, of its last `most` bytes; none if it is gone.

    The first may be the end of a line.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode(errors="replace").splitlines()
    except OSError:
        return []


def _bare(line: str) -> str:
    return LOG_PREFIX.sub("", line, count=1)
