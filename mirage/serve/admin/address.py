"""Admin sockets, as commands find them: those at which servers of this user listen."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mirage.errors import InputRefused
from mirage.serve.rundir.folders import ADMIN_SOCKETS
from mirage.serve.rundir.parent_folders import PRIVATE, places

RUN_FOLDERS = "mirage-*"
CREDENTIALS = struct.Struct("3i")
"""Form of a peer's process id, user id and group id, as Linux gives them."""


class Credentials(NamedTuple):
    """Process at the other end of a Unix socket; for a client it is the process that listens."""

    pid: int
    uid: int
    gid: int


def credentials(connected: socket.socket) -> Credentials:
    """Process at the other end of a Unix socket. Raises `OSError` if `connected` is no Unix
    socket, or is not connected.
    """
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return Credentials(*CREDENTIALS.unpack(told))


def listener(path: str) -> Credentials | None:
    """Process that listens at the Unix socket `path`; None if it cannot be connected."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as there:
        try:
            there.connect(path)
            return credentials(there)
        except OSError:
            return None


def chosen(named: Path | None) -> Path:
    """Socket that is `named`; if none is, that of the only server of this user.

    Raises `InputRefused` if no server listens there, or if none or several are found.
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
            f"no `mirage serve` of this user is found in {places().sockets}: start one, wait until "
            "it has printed `operators: --socket PATH`, or name that socket"
        )
    refuse_several(found)
    return next(iter(found))


def refuse_several(found: Mapping[Path, Credentials]) -> None:
    """Raise `InputRefused` if `found` has several servers, of which the command must name one."""
    if len(found) > 1:
        each = ", ".join(f"{path} (pid {who.pid})" for path, who in found.items())
        raise InputRefused(f"{len(found)} servers run here, name one by --socket: {each}")


def listening() -> dict[Path, Credentials]:
    """Sockets at which servers listen, in folders that belong to this user alone."""
    folders = sorted(Path(places().sockets).glob(RUN_FOLDERS))
    paths = [path for folder in folders if _is_ours(folder) for path in folder.glob(ADMIN_SOCKETS)]
    return {path: who for path in sorted(paths) if (who := listener(str(path))) is not None}


def _is_closed_to_us(path: Path) -> bool:
    """True if this user may not open the socket, or not look into its folder."""
    try:
        return path.exists() and not os.access(path, os.W_OK)
    except OSError as error:
        return isinstance(error, PermissionError)


def _is_ours(folder: Path) -> bool:
    found = os.lstat(folder)
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == PRIVATE
    return private and found.st_uid == os.geteuid()
