"""A trace file that is read once from front to back, in small parts, so that it may be a pipe."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from mirage.units import size
from mirage.workload.formats import kinds
from mirage.workload.formats.head import is_array, look, objects
from mirage.workload.formats.opened import CHUNK, Resumed, plain
from mirage.workload.formats.request import TraceError
from mirage.workload.formats.telling import SHOWN, first_line, shown

MAX_FURTHER = 2**18
"""First bytes of a file that are looked at if its first object does not show the format."""
MAX_LINE = 16 * 2**20
"""Most bytes of a row. A file with a longer row is no trace, and the row is never held in
memory.
"""
MAX_TOLD = 1024
"""Most warnings that are remembered in order not to repeat them."""

log = logging.getLogger(__name__)


class Source:
    """An open trace. A reader uses its `lines` or its `objects`, and calls `skip` for rows it
    leaves out.

    Lines and objects come with their place in the file, for messages.
    """

    def __init__(
        self,
        path: Path,
        skipped: Counter[str] | None = None,
        *,
        seed: int = 0,
        bounded: bool = False,
        named: bool = False,
    ) -> None:
        """Open the file and read its beginning; a packed file is unpacked.

        Raises `OSError`, and `TraceError` for a file that is no text (`kinds`). `seed` is for
        formats that draw. `bounded` means that only a part of the requests is taken, so that an
        endless trace may be read. `named` means that the user gave the file's format.
        """
        self.path = path
        self.seed = seed
        self.bounded = bounded
        self.named = named
        self.skipped: Counter[str] = Counter() if skipped is None else skipped
        self._file = path.open("rb", buffering=0)
        try:
            file = plain(path, self._file)
            begin, head = look(file)
            if (what := kinds.what_else(begin)) is not None:
                raise TraceError(f"{path}: {what}")
        except BaseException:
            self._file.close()
            raise
        self._is_array = is_array(begin)
        self._rest = Resumed(begin, file)
        self.head = replace(head, further=lambda: objects(self._rest.peek(MAX_FURTHER)))

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def skip(self, why: str) -> None:
        """Count a row that is no request, by the reason `why`."""
        self.skipped[why] += 1

    def say(self, what: str) -> None:
        """Log a warning about this file, unless this process has logged the same one before."""
        _warned(f"{self.path}: {what}")

    def lines(self) -> Iterator[tuple[str, str]]:
        """Place and text of every line, without blanks at its ends; invalid UTF-8 becomes
        replacement characters. Blank lines at the end are left out.

        Raises `TraceError` for a blank line before others, and for more than `MAX_LINE` bytes.
        """
        for where, line in self._lines():
            yield where, line.decode(errors="replace")

    def objects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Place and content of each JSON object, from one array or one a line. Raises `TraceError`
        for invalid JSON, for a value that is no object, and if there is none.
        """
        empty = True
        for where, value in self._entries() if self._is_array else self._values():
            if not isinstance(value, dict):
                raise TraceError(f"{where}: found {shown(value)}, expected a JSON object")
            empty = False
            yield where, value
        if empty:
            raise TraceError(f"{self.path}: holds no JSON objects: nothing to replay")

    def text(self, most: int) -> str:
        """The whole file. Raises `TraceError` if it has more than `most` bytes or is not UTF-8."""
        content = io.BufferedReader(self._rest, CHUNK).read(most + 1)
        if len(content) > most:
            raise TraceError(f"{self.path}: over {most // 2**10} KiB long: this is none")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: not UTF-8 text ({error.reason})") from None

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        file = io.BufferedReader(self._rest, CHUNK)
        blank = 0
        for number in count(1):
            line = file.readline(MAX_LINE + 1)
            if not line:
                return
            where = f"{self.path}, line {number}"
            if len(line) > MAX_LINE:
                raise TraceError(f"{where}: over {size(MAX_LINE)} long: this is no trace")
            line = line.strip()
            if not line:
                blank = blank or number
            elif blank:
                raise TraceError(f"{self.path}, line {blank}: blank, and rows follow: remove it")
            else:
                yield where, line

    def _values(self) -> Iterator[tuple[str, Any]]:
        for where, line in self._lines():
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                text = line[:SHOWN].decode(errors="replace")
                raise TraceError(
                    f"{where}: found {text!r}, which is no JSON ({first_line(error)}): "
                    "correct the line, or fetch the file anew"
                ) from None
            yield where, value

    def _entries(self) -> Iterator[tuple[str, Any]]:
        from mirage.workload.formats import pieces

        entries = pieces.entries(self._rest)
        for number in count(1):
            where = f"{self.path}, entry {number}"
            try:
                value = next(entries)
            except StopIteration:
                return
            except pieces.MALFORMED as error:
                raise TraceError(
                    f"{where}: here the file is no JSON ({first_line(error)}): "
                    "correct it, or fetch it anew"
                ) from None
            yield where, value


@lru_cache(maxsize=MAX_TOLD)
def _warned(line: str) -> None:
    """Log a line unless it was logged before, since a trace is read several times."""
    log.warning("%s", line)
