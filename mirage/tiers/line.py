"""Joining of the host pool by an engine: it introduces itself, and gets memory or the reason why
not."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

from mirage.tiers.contract import LentBy, Member
from mirage.tiers.messages import VERSION, Join, Sorry, ToEngine, Welcome
from mirage.tiers.region import Region, Regions
from mirage.wire import Broken, Channel

JOIN_S = 5.0
MOST_UNREAD = 2**23
"""Most bytes that may wait for the pool to read them; with more the engine gives the pool up."""
MOST_FILES = 3


class Joined(NamedTuple):
    """Channel and memory that an engine has from the pool."""

    channel: Channel[ToEngine]
    regions: Regions
    locks: socket.socket | None
    """Connection for page-locking slabs of host memory, if the engine wanted one; else None."""


def join(path: Path, member: Member) -> Joined:
    """Join the pool at `path`, waiting up to `JOIN_S` seconds for each answer. Raise `Broken` if
    the pool refuses or does not answer in time, `OSError` or `ValueError` for other failures;
    nothing is left open then."""
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel: Channel[ToEngine] = Channel(
        there, ToEngine, most_descriptors=MOST_FILES, most_unread=MOST_UNREAD
    )
    try:
        there.settimeout(JOIN_S)
        there.connect(str(path))
        channel.say(_hello(member))
        regions, locks = _welcome(*channel.wait())
    except BaseException:
        channel.close()
        raise
    there.setblocking(False)
    return Joined(channel, regions, locks)


def _welcome(message: ToEngine, fds: list[int]) -> tuple[Regions, socket.socket | None]:
    try:
        if isinstance(message, Sorry):
            raise Broken(message.why)
        if not isinstance(message, Welcome) or len(fds) != _files(message):
            raise Broken(f"{type(message).__name__} with {len(fds)} files is no welcome")
        locks = socket.socket(fileno=fds.pop()) if message.locks else None
        try:
            host = Region(fds.pop(0))
            try:
                peer = Region(fds.pop()) if fds else None
            except (OSError, ValueError):
                host.close()
                raise
        except (OSError, ValueError):
            if locks is not None:
                locks.close()
            raise
    finally:
        for fd in fds:
            socket.close(fd)
    lenders = tuple(LentBy(*lender) for lender in message.lenders)
    return Regions(host, peer, message.peer_bytes_per_s, lenders), locks


def _hello(member: Member) -> Join:
    return Join(
        VERSION,
        member.tenant,
        member.fingerprint,
        member.block_bytes,
        replicas=member.replicas,
        locks=member.locks,
    )


def _files(welcome: Welcome) -> int:
    """Return the number of descriptors that come with the message."""
    return 1 + bool(welcome.peer_nbytes) + welcome.locks
