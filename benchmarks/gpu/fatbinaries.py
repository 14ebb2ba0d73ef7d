"""NVIDIA's fat binaries, in which a library has the same kernels for several architectures.

A container is a header (magic, version, its bytes, bytes behind it) and entries; an entry is a
header (kind, version, its bytes, bytes of the payload, and its architecture at byte 28) and a
payload. The driver looks at headers first and reads the payload that it chooses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<4sHHQ")
ENTRY = struct.Struct("<HHIQ12xI")
VERSION = 1
MACHINE_CODE = 2
"""Kind of an entry; 1 is PTX, which the driver would compile."""


@dataclass(frozen=True)
class Payload:
    """Code of one entry: its place in the file, and the architecture for which it is (90 is compute
    capability 9.0).
    """

    kind: int
    architecture: int
    begin: int
    end: int

    def runs_on(self, compute: int) -> bool:
        """True for machine code of the same major version as `compute` that is not newer."""
        same = self.architecture // 10 == compute // 10
        return self.kind == MACHINE_CODE and same and self.architecture <= compute


def containers(library: bytes) -> Iterator[list[Payload]]:
    """Payloads of each fat binary in `library`. Places that only happen to have the magic number
    give none.
    """
    place = 0
    while (place := library.find(MAGIC, place)) >= 0:
        payloads, end = _container(library, place)
        if payloads:
            yield payloads
        place = end


def slimmed(library: bytes, compute: int) -> bytes | None:
    """Copy of `library` with zeros in place of all code except that which runs best on `compute`.

    Nothing moves, and compression removes the zeros. None if it has code but none that runs there.
    """
    slim, found, kept = bytearray(library), False, False
    for payloads in containers(library):
        found = True
        runs = [one.architecture for one in payloads if one.runs_on(compute)]
        kept |= bool(runs)
        for one in payloads:
            if not (one.runs_on(compute) and one.architecture == max(runs)):
                slim[one.begin : one.end] = bytes(one.end - one.begin)
    return bytes(slim) if kept or not found else None


def _container(library: bytes, place: int) -> tuple[list[Payload], int]:
    """Payloads of the container at `place`, none if it is not a whole one; and the place from which
    to search on.
    """
    none: tuple[list[Payload], int] = [], place + len(MAGIC)
    if place + CONTAINER.size > len(library):
        return none
    _, version, header, nbytes = CONTAINER.unpack_from(library, place)
    at, end = place + header, place + header + nbytes
    if version != VERSION or header != CONTAINER.size or end > len(library):
        return none
    payloads = []
    while at + ENTRY.size <= end:
        kind, _, header, nbytes, architecture = ENTRY.unpack_from(library, at)
        begin, at = at + header, at + header + nbytes
        if header < ENTRY.size or at > end:
            return none
        payloads.append(Payload(kind, architecture, begin, at))
    return payloads, end
