"""Loopback addresses of two machines of a cluster, and the port of its head. Those of each process
of tests differ from those of all others, so that their clusters never meet: Ray listens for all
addresses. It takes 127.0.0.1 for whichever address the machine has outside.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

PORTS = range(20_000, 32_000)
"""Ports that neither Ray's workers nor outgoing connections take."""


def _free_port() -> int:
    first = os.getpid() % len(PORTS)
    for port in (*PORTS[first:], *PORTS[:first]):
        with suppress(OSError), socket.create_server(("", port)):
            return port
    raise OSError("no port is free")


_NETWORK = f"127.{1 + os.getpid() // 250 % 250}.{os.getpid() % 250}"
HEAD, SECOND = f"{_NETWORK}.2", f"{_NETWORK}.3"
PORT = _free_port()
