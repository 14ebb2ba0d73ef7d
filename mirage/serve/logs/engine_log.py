"""Log of an engine: the progress of its start, and its last error."""

from __future__ import annotations

import os
import re
from pathlib import Path

ERROR_LINE = re.compile(r"\b(\w+(?:\.\w+)*(?:Error|Exception)|error|ERROR)\b\s*:")
NO_ERROR = re.compile(r"\b(WARNING|INFO|DEBUG) \d\d-\d\d ")
LOG_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) )?(?:ERROR \S+ \S+ \[\S+\] )?")
ANY_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) )?(?:[A-Z]+ \d\d-\d\d \S+ \[\S+\] )?")
CONTROLS = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, such as colours; they are removed from lines that operators see."""
MAX_LINE = 300
SHORT_LINE = 100
TAIL_BYTES = 65536
ERROR_BYTES = 1 << 20
"""Most bytes at the end of a log that are searched for an error, since a log may have gigabytes."""
LOOKED_AT = 1000
"""Most characters of a line that are searched for an error, since the search takes quadratic
time.
"""
PROGRESS_LINE = re.compile(
    r"\b(?:captur|compil|download|initializ|load|process|profil|warm)ing\b|\d %|\d%", re.IGNORECASE
)
"""Lines of an engine's log that tell the progress of its start."""


def last_progress(log: Path, start: int = 0) -> str:
    """Newest `PROGRESS_LINE` of a log from byte `start` on, without vLLM's prefix; else empty.

    Of a progress bar that is drawn again and again it is the newest state.
    """
    lines = reversed(_last_lines(log, start, TAIL_BYTES))
    bare = (ANY_PREFIX.sub("", CONTROLS.sub("", line).strip(), count=1) for line in lines)
    telling = next((line for line in bare if PROGRESS_LINE.search(line)), "")
    return " ".join(telling.split())[:SHORT_LINE]


def last_error(log: Path, start: int = 0) -> str | None:
    """Last error in an engine's log from byte `start` on, as its most telling line; None if there
    is no error.

    Only the last `ERROR_BYTES` are read. Errors of the engine core are preferred, because vLLM's
    server only reports "Engine core initialization failed" after them. Of an error of pydantic the
    next line is returned, which has the reason.
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
    """Last `most` bytes of a log from byte `start` on, as lines; none if it cannot be read.

    The first line may lack its beginning.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode(errors="replace").splitlines()
    except OSError:
        return []


def _bare(line: str) -> str:
    return LOG_PREFIX.sub("", line, count=1)
