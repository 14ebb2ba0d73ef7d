"""TCP connections with other machines, which break once the other machine is silent."""

from __future__ import annotations

import asyncio
import socket
from weakref import WeakSet

from mirage.control.machine_silence import door_s


class PeerSilence:
    """Longest silence, in seconds, of another machine before a connection with it breaks. `becomes`
    changes it, for open connections too.
    """

    def __init__(self, silent_s: int) -> None:
        """`silent_s` is the key `http.silent_s`, in seconds."""
        self._silent_s = silent_s
        self._watched: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._beating: WeakSet[asyncio.BaseTransport] = WeakSet()

    @property
    def door_s(self) -> float:
        """Seconds to wait for an answer at the door of a device."""
        return door_s(self._silent_s)

    def becomes(self, silent_s: int) -> None:
        """Replace the longest silence by `silent_s` seconds."""
        self._silent_s = silent_s
        for transport in list(self._watched):
            self.watch(transport)
        for transport in list(self._beating):
            self.beats(transport)

    def watch(self, transport: asyncio.BaseTransport) -> None:
        """Let a TCP connection break if the other machine answers no probe for about `silent_s`
        seconds.

        Other connections are left as they are.
        """
        self._watched.add(transport)
        if (there := _tcp_of(transport)) is None:
            return
        there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1)):
            there.setsockopt(socket.IPPROTO_TCP, option, value)
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, self._silent_s)

    def beats(self, transport: asyncio.BaseTransport) -> None:
        """Let a TCP connection break if sent data is not acknowledged for `silent_s` seconds, in
        addition to the probes of `watch`.

        This is for connections on which heartbeats are sent all the time.
        """
        self._beating.add(transport)
        if (there := _tcp_of(transport)) is not None:
            limit_ms = self._silent_s * 1000
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


def _tcp_of(transport: asyncio.BaseTransport) -> socket.socket | None:
    """Socket of an open TCP connection; None for any other transport."""
    there: socket.socket | None = transport.get_extra_info("socket")
    if there is None or transport.is_closing() or there.fileno() < 0:
        return None
    return there if there.family in (socket.AF_INET, socket.AF_INET6) else None
