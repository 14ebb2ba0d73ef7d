"""Listening sockets that the service manager has opened and passed to this process
(sd_listen_fds).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from mirage.config import ConfigError
from mirage.serve.routed.messages import MOST_SOCKETS

FIRST = 3
"""Number of the first descriptor that is passed."""


def passed_sockets(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Sockets passed to this process; their variables are removed from `environment`.

    Raises `ConfigError` if one does not listen on an IP address, or if they are more than
    `MOST_SOCKETS`.
    """
    count, pid = environment.pop("LISTEN_FDS", ""), environment.pop("LISTEN_PID", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    if int(count) > MOST_SOCKETS:
        raise ConfigError(f"LISTEN_FDS is {count}: name {MOST_SOCKETS} addresses at most")
    return [_listening(number) for number in range(FIRST, FIRST + int(count))]


def _listening(descriptor: int) -> socket.socket:
    try:
        one = socket.socket(fileno=descriptor)
        stream = one.type == socket.SOCK_STREAM
        listens = stream and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(
            f"LISTEN_FDS: descriptor {descriptor} is no socket ({error.strerror}): pass none"
        ) from None
    if not listens or one.family not in (socket.AF_INET, socket.AF_INET6):
        raise ConfigError(
            f"LISTEN_FDS: descriptor {descriptor} ({one.family.name}) does not listen on an "
            "address of IP: use ListenStream=ADDRESS:PORT"
        )
    one.set_inheritable(False)
    return one


def address_of(one: socket.socket) -> tuple[str, int]:
    """Host and port that a socket listens on."""
    host, port = one.getsockname()[:2]
    return str(host), int(port)
