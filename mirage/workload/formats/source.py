"""A trace file that is read once, front to back, a little at a time; a pipe will do as well."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any, cast

import ijson
import msgspec

from mirage.units import size
from mirage.workload.formats import kinds
from mirage.workload.formats.request import TraceError

CHUNK = 64 * 1024
MAX_HEAD = 2**20
"""Bytes that are looked at to tell a file's format."""
MAX_FURTHER = 2**18
"""Bytes that are looked at where the first object does not tell the format."""
MAX_LINE = 16 * 2**20
"""Bytes of a row. Longer ones are taken for a file of another kind, and never held."""
SHOWN = 80
"""Characters of a damaged row that a message repeats."""

MAX_TOLD = 1024
"""Warnings that are remembered, so as not to be repeated."""

log = logging.getLogger(__name__)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Head:
    """How a file begins: its first line, and the fields of its first JSON object, if it has one.

    Fields beyond `MAX_HEAD` are missing.
    """

    line: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    further: Callable[[], Iterator[dict[str, Any]]] = field(default=lambda: iter(()))
    """Gives the JSON objects in the first `MAX_FURTHER` bytes, before any is read as a row."""


class Source:
    """An open trace. A reader takes its `lines` or its `objects`, and `skip`s what it leaves out.

    Lines and objects come with where they stand, for messages.
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
        """Raises `OSError`, and `TraceError` for a file that is no text, as `kinds` knows them.

        Reads as much as it takes to see how the file begins. A packed file is unpacked.

        `seed` is for formats that draw, and `bounded` says that whoever reads stops by itself,
        so that a trace without end may be read; `named`, that somebody said the file's format.
        """
        self.path = path
        self.seed = seed
        self.bounded = bounded
        self.named = named
        self.skipped: Counter[str] = Counter() if skipped is None else skipped
        self._file = path.open("rb", buffering=0)
        try:
            plain = _plain(path, self._file)
            begin, head = _look(plain)
            if (what := kinds.what_else(begin)) is not None:
                raise TraceError(f"{path}: {what}")
        except BaseException:
            self._file.close()
            raise
        self._is_array = begin.lstrip().startswith(b"[")
        self._rest = _Resumed(begin, plain)
        self.head = replace(head, further=self._beginning)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def skip(self, why: str) -> None:
        """Count a row that is no request."""
        self.skipped[why] += 1

    def say(self, what: str) -> None:
        """Warn the reader of a log of what is not as the file has it, once in a process."""
        _warned(f"{self.path}: {what}")

    def lines(self) -> Iterator[tuple[str, str]]:
        """Every line without blanks at its ends; bytes that are no UTF-8 become marks."""
        for where, line in self._lines():
            yield where, line.decode(errors="replace")

    def objects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The JSON objects of one array, or one a line."""
        empty = True
        for where, value in self._entries() if self._is_array else self._values():
            if not isinstance(value, dict):
                raise TraceError(f"{where}: found {shown(value)}, expected a JSON object")
            empty = False
            yield where, value
        if empty:
            raise TraceError(f"{self.path}: holds no JSON objects: nothing to replay")

    def text(self, most: int) -> str:
        """The whole file. Raises `TraceError` for more than `most` bytes, and for no UTF-8."""
        content = io.BufferedReader(self._rest, CHUNK).read(most + 1)
        if len(content) > most:
            raise TraceError(f"{self.path}: over {most // 2**10} KiB long: this is none")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: not UTF-8 text ({error.reason})") from None

    def _beginning(self) -> Iterator[dict[str, Any]]:
        begin = io.BytesIO(self._rest.peek(MAX_FURTHER))
        values = ijson.items(begin, "item", use_float=True) if self._is_array else _decoded(begin)
        with suppress(ijson.JSONError, msgspec.DecodeError, ValueError, RecursionError):
            yield from takewhile(lambda value: isinstance(value, dict), values)

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
                    f"{where}: found {text!r}, which is no JSON ({_first_line(error)}): "
                    "correct the line, or fetch the file anew"
                ) from None
            yield where, value

    def _entries(self) -> Iterator[tuple[str, Any]]:
        entries = ijson.items(self._rest, "item", use_float=True, buf_size=CHUNK)
        for number in count(1):
            where = f"{self.path}, entry {number}"
            try:
                value = next(entries)
            except StopIteration:
                return
            except (ijson.JSONError, ValueError, RecursionError) as error:
                raise TraceError(
                    f"{where}: here the file is no JSON ({_first_line(error)}): "
                    "correct it, or fetch it anew"
                ) from None
            yield where, value


def shown(value: object) -> str:
    """A value as messages repeat it: its beginning, on one line."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


@lru_cache(maxsize=MAX_TOLD)
def _warned(line: str) -> None:
    """A trace is read again and again, and nothing new is found in it."""
    log.warning("%s", line)


class _Resumed(io.RawIOBase):
    """The bytes that were looked at, then the rest of the file."""

    def __init__(self, begin: bytes, file: io.RawIOBase) -> None:
        self._begin = memoryview(begin)
        self._file = file

    def peek(self, size: int) -> bytes:
        """The next bytes, which stay; fewer where the file ends."""
        parts, length = [bytes(self._begin)], len(self._begin)
        while length < size and (more := self._file.read(size - length)):
            parts.append(more)
            length += len(more)
        self._begin = memoryview(b"".join(parts))
        return bytes(self._begin[:size])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if not self._begin:
            return cast("int | None", self._file.readinto(buffer))
        size = min(len(buffer), len(self._begin))
        buffer[:size] = self._begin[:size]
        self._begin = self._begin[size:]
        return size


class _Unpacked(io.RawIOBase):
    """The bytes of a packed file as they were. Raises `TraceError` where it is damaged."""

    def __init__(self, path: Path, name: str, file: Any) -> None:
        """`file` gives bytes by `read1`; `name` is how it was packed."""
        self._path, self._name, self._file = path, name, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._file.read1(len(buffer))
        except kinds.DAMAGES as error:
            if getattr(error, "errno", None) is not None:
                raise  # the disk's, not the unpacker's
            raise TraceError(
                f"{self._path}: the {self._name} file is damaged ({_first_line(error)}): "
                "fetch it anew"
            ) from None
        buffer[: len(found)] = found
        return len(found)


def _plain(path: Path, file: io.FileIO) -> io.RawIOBase:
    """What gives the file's bytes, unpacked if it is packed."""
    begin = b""
    while len(begin) < kinds.SIGNATURE and (more := file.read(CHUNK)):
        begin += more
    whole = _Resumed(begin, file)
    packed = kinds.unpacker(begin)
    if packed is None:
        return whole
    name, unpack = packed
    plain = _Unpacked(path, name, unpack(whole))
    begin = plain.read(kinds.SIGNATURE) or b""
    if (again := kinds.unpacker(begin)) is not None:
        raise TraceError(f"{path}: is {again[0]} inside of {name}: unpack it once")
    return _Resumed(begin, plain)


def _decoded(lines: io.BytesIO) -> Iterator[Any]:
    """JSON values, one a line; the last line may be cut."""
    return (msgspec.json.decode(line) for line in lines if line.strip())


def _look(file: io.RawIOBase) -> tuple[bytes, Head]:
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


def _first_object(begin: bytes) -> tuple[dict[str, Any], bool]:
    """The fields of the first JSON object, and whether it ends in these bytes."""
    builder, depth, whole = ijson.ObjectBuilder(), 0, False
    outside = 1 if begin.lstrip().startswith(b"[") else 0
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


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:SHOWN]
