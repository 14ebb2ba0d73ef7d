"""Admin sockets: their names, and those of this user's servers that listen."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from mirage.errors import InputRefused
from mirage.serve.places import PRIVATE, places
from mirage.serve.rundir import ADMIN_SOCKETS

RUN_FOLDERS = "mirage-*"
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer, as Linux tells them."""


class Credentials(NamedTuple):
    """Process at the other end of a Unix socket; of a server, the one that began to listen."""

    pid: int
    uid: int
    gid: int


def credentials(connected: socket.socket) -> Credentials:
    """Raises `OSError` if it is no Unix socket, or not connected."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return Credentials(*CREDENTIALS.unpack(told))


def listener(path: str) -> Credentials | None:
    """The process that listens at a Unix socket; None if none can be reached."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as there:
        try:
            there.connect(path)
            return credentials(there)
        except OSError:
            return None


def chosen(named: Path | None) -> Path:
    """The socket that is `named`, else that of the only server there is.

    Raises `InputRefused` if none listens there, or if several do.
    """
    if named is not None:
        if listener(str(named)) is None:
            if _is_closed_to_us(named):
                raise InputRefused(f"{named} belongs to another user: ask as that one")
            raise InputRefused(f"no server listens at {named}: name another socket by --socket")
        return named
    found = listening()
    if not found:
        raise InputRefused(
            f"no `mirage serve` of this user is found in {places().sockets}: start one, or name "
            "the socket that it printed by --socket"
        )
    if len(found) > 1:
        each = ", ".join(f"{path} (pid {who.pid})" for path, who in found.items())
        raise InputRefused(f"{len(found)} servers run here, name one by --socket: {each}")
    return next(iter(found))


def listening() -> dict[Path, Credentials]:
    """Sockets with a listening server, in folders that belong to this user alone."""
    folders = sorted(Path(places().sockets).glob(RUN_FOLDERS))
    paths = [path for folder in folders if _is_ours(folder) for path in folder.glob(ADMIN_SOCKETS)]
    return {path: who for path in sorted(paths) if (who := listener(str(path))) is not None}


def _is_closed_to_us(path: Path) -> bool:
    """True if this user may not open it, or not even look into its folder."""
    try:
        return path.exists() and not os.access(path, os.W_OK)
    except OSError as error:
        return isinstance(error, PermissionError)


def _is_ours(folder: Path) -> bool:
    found = os.lstat(folder)
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == PRIVATE
    return private and found.st_uid == os.geteuid()
