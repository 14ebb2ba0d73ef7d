"""Record before a block on disk, and the check that a block is the requested one. Pure.

CRC-32 is the checksum that the standard library computes fastest without the GIL. It detects torn
writes and failing media; blocks of other weights are recognised by the whole fingerprint.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key
from mirage.tiers.space import PAGE
from mirage.units import align_up

_MAGIC = b"MIRAGEKV"
_VERSION = 2
_FIXED = struct.Struct("<8sIQIHHH")
"""Layout: magic, version, bytes of the block, their checksum, bytes of fingerprint, key and
tenant."""
_CHECKSUM = struct.Struct("<I")


def cell_bytes(nbytes: int) -> int:
    """Return the bytes that a block of `nbytes` takes on disk: a page of header, and its own whole
    pages."""
    return PAGE + align_up(nbytes, PAGE)


class BlockRecord(NamedTuple):
    """Header of a cell: the name, bytes and tenant of the block after it."""

    name: Name
    nbytes: int
    tenant: str


def header(name: Name, block: memoryview, tenant: str) -> bytes:
    """Return the header, `PAGE` bytes. Raise `ValueError` if the name does not fit."""
    owner = tenant.encode()
    lengths = len(name.fingerprint), len(name.key), len(owner)
    fixed = _FIXED.pack(_MAGIC, _VERSION, len(block), zlib.crc32(block), *lengths)
    text = fixed + name.fingerprint + name.key + owner
    if len(text) + _CHECKSUM.size > PAGE:
        raise ValueError(f"a name of {len(name.fingerprint) + len(name.key)} bytes is too long")
    return (text + _CHECKSUM.pack(zlib.crc32(text))).ljust(PAGE, b"\0")


def named(page: bytes | memoryview) -> BlockRecord | None:
    """Return the record in the header of a cell; None if its checksum is wrong, or if it has
    another format or version."""
    magic, version, nbytes, _, prints, keys, owner = _FIXED.unpack_from(page)
    end = _FIXED.size + prints + keys + owner
    if magic != _MAGIC or version != _VERSION or end + _CHECKSUM.size > PAGE:
        return None
    if _CHECKSUM.unpack_from(page, end)[0] != zlib.crc32(bytes(page[:end])):
        return None
    middle, last = _FIXED.size + prints, end - owner
    name = Name(bytes(page[_FIXED.size : middle]), Key(bytes(page[middle:last])))
    return BlockRecord(name, nbytes, bytes(page[last:end]).decode())


def believed(page: bytes | memoryview, name: Name, block: memoryview) -> bool:
    """True if `block` is the content that was stored under `name`, by the header in `page` and its
    checksums."""
    record = named(page)
    if record is None or record[:2] != (name, len(block)):
        return False
    return bool(_FIXED.unpack_from(page)[3] == zlib.crc32(block))
