"""Kinds of files that users name as a trace, by their first bytes. Pure.

Packed files are unpacked while they are read. Files of other kinds are refused with advice.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any

UNPACKERS: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\x1f\x8b": ("gzip", lambda file: gzip.GzipFile(fileobj=file, mode="rb")),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ\0": ("xz", lzma.LZMAFile),
}
"""Packings by a file's first bytes: the name, and the function that makes an unpacking reader."""
SIGNATURE = max(map(len, UNPACKERS))
"""Most bytes needed to recognise a packed file."""
DAMAGES = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""Exceptions that an unpacker raises for a damaged file."""

_TABLE = "write it as CSV or JSON lines first"
_OTHER = "name another file"
_ARCHIVE = "unpack it and name the trace that is in it"
_SHEET = "save it as CSV"
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "is a ZIP archive", _ARCHIVE),
    (b"PK\x05\x06", "is a ZIP archive with nothing in it", _ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive", _ARCHIVE),
    (b"Rar!\x1a\x07", "is a RAR archive", _ARCHIVE),
    (b"\x28\xb5\x2f\xfd", "is packed with zstd", "unpack it first (zstd -d FILE)"),
    (b"\x04\x22\x4d\x18", "is packed with LZ4", "unpack it first (lz4 -d FILE)"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "is a spreadsheet (xls)", _SHEET),
    (b"PAR1", "is a Parquet file", _TABLE),
    (b"ARROW1", "is an Arrow file", _TABLE),
    (b"FEA1", "is a Feather file", _TABLE),
    (b"ORC", "is an ORC file", _TABLE),
    (b"Obj\x01", "is an Avro file", _TABLE),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file", _TABLE),
    (b"SQLite format 3\0", "is an SQLite database", "write the table as CSV first"),
    (b"\x93NUMPY", "is a NumPy array", _TABLE),
    *((bytes([0x80, version]), "is a Python pickle", _TABLE) for version in (2, 3, 4, 5)),
    (b"%PDF-", "is a PDF", _OTHER),
    *((begin, "is a picture", _OTHER) for begin in (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8")),
    (b"404: Not Found", "is the answer of a web server without the file", "correct the address"),
)
_UTF = ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"))
_UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|\0[\x09-\x7e]|[\x09-\x7e]\0", re.DOTALL)
_LFS = re.compile(
    rb"version https://git-lfs\.github\.com/spec/.*?(?:\nsize (\d{1,15}))?\n?\Z", re.S
)
_ANNEX = re.compile(rb"\S*/annex/objects/")
_XML = re.compile(rb"\s*<(\?xml|!--|[a-zA-Z!])")
_TAR = b"ustar"
_TAR_AT = 257
_TEXT_BYTES = 1024
"""Number of first bytes in which other kinds of text are recognised; a zero byte in the first line
means that the file is no text.
"""


def unpacker(begin: bytes) -> tuple[str, Callable[[Any], Any]] | None:
    """Name of a packed file's packing and its unpacking reader; None if it is not packed."""
    return next((each for mark, each in UNPACKERS.items() if begin.startswith(mark)), None)


def what_else(begin: bytes) -> str | None:
    """Description of a file that is no text of a trace, and what to do; None if it may be a trace.

    `begin` has no byte order mark of UTF-8.
    """
    known = next(((what, do) for mark, what, do in _KINDS if begin.startswith(mark)), None)
    what, do = known or _text_of_another_kind(begin) or ("", "")
    if b"[Content_Types].xml" in begin[:_TEXT_BYTES] and begin.startswith(b"PK"):
        what, do = "is a spreadsheet (xlsx)", _SHEET
    return f"{what}: {do}" if what else None


def _text_of_another_kind(begin: bytes) -> tuple[str, str] | None:
    """Description and advice for a text of another kind, or for a file that is no text; None for a
    possible trace.
    """
    if not begin:
        return "is empty", "fetch it anew, or name another file"
    if pointer := _LFS.match(begin[:_TEXT_BYTES]):
        size = f" of {int(pointer[1]):,} bytes" if pointer[1] else ""
        return f"is the pointer of Git LFS to a file{size}", "get that one (git lfs pull)"
    if _ANNEX.match(begin[:_TEXT_BYTES]):
        return "is the pointer of git-annex to a file", "get that one (git annex get FILE)"
    if _XML.match(begin[:_TEXT_BYTES]):
        return "is a web page (HTML or XML)", "fetch the file itself, and not a page about it"
    if begin.startswith(_TAR, _TAR_AT):
        return "is a tar archive", "unpack it (tar -xf FILE) and name the trace that is in it"
    encoding = next((name for mark, name in _UTF if begin.startswith(mark)), None)
    if encoding is None and _UTF_16.match(begin):
        encoding = "UTF-16"
    if encoding is not None:
        return f"is {encoding} text", f"write it as UTF-8 first (iconv -f {encoding} -t UTF-8 FILE)"
    if b"\0" in begin[:_TEXT_BYTES].partition(b"\n")[0]:
        return "is no text of a trace", _OTHER
    return None
