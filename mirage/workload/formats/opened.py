"""The bytes of a file, unpacked if it is packed, with a way to look at the next ones first."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

from mirage.workload.formats import kinds
from mirage.workload.formats.request import TraceError
from mirage.workload.formats.telling import first_line

CHUNK = 64 * 1024


class Resumed(io.RawIOBase):
    """A stream of the bytes that were read already, followed by the rest of the file."""

    def __init__(self, begin: bytes, file: io.RawIOBase) -> None:
        self._begin = memoryview(begin)
        self._file = file

    def peek(self, size: int) -> bytes:
        """The next `size` bytes without consuming them; fewer at the end of the file."""
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
    """The unpacked bytes of a packed file. Raises `TraceError` if it is damaged."""

    def __init__(self, path: Path, name: str, file: Any) -> None:
        """`file` is the unpacking reader; `name` is the packing's name for messages."""
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
                f"{self._path}: the {self._name} file is damaged ({first_line(error)}): "
                "fetch it anew"
            ) from None
        buffer[: len(found)] = found
        return len(found)


def plain(path: Path, file: io.FileIO) -> io.RawIOBase:
    """Stream of a file's bytes, unpacked if it is packed.

    Raises `TraceError` for a file that was packed twice; reading a damaged one raises it later.
    """
    begin = b""
    while len(begin) < kinds.SIGNATURE and (more := file.read(CHUNK)):
        begin += more
    whole = Resumed(begin, file)
    packed = kinds.unpacker(begin)
    if packed is None:
        return whole
    name, unpack = packed
    inside = _Unpacked(path, name, unpack(whole))
    begin = inside.read(kinds.SIGNATURE) or b""
    if (again := kinds.unpacker(begin)) is not None:
        raise TraceError(f"{path}: is {again[0]} inside of {name}: unpack it once")
    return Resumed(begin, inside)
