"""Connection of a device server to the process above the device servers (`mirage serve`): signs of
life, and news about its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from mirage.machines.line import (
    BEAT_S,
    DeviceAlive,
    DeviceCannot,
    DeviceReady,
    FromDevice,
    ToDevice,
)
from mirage.wire import Broken, Channel


class DeviceLine:
    """Connection to the process above. Signs of life are sent by a thread until `keep` runs, then
    by the event loop.
    """

    def __init__(self, there: socket.socket) -> None:
        """`there` is the socket to the process above, which this object closes."""
        there.setblocking(False)
        self._channel: Channel[ToDevice] = Channel(there, ToDevice)
        self._saying = threading.Lock()
        self._kept = threading.Event()
        threading.Thread(target=self._beat, name="mirage-device-beat", daemon=True).start()

    def write(self, url: str) -> None:
        """Tell the process above that all that can start is ready: see `SaysReady`."""
        self._say(DeviceReady())

    def remove(self) -> None:
        """Do nothing: the parent process sees this server end."""

    def cannot(self, why: str, *, refused: bool) -> None:
        """Tell the process above that this one is about to end, for the reason `why`; `refused` is
        True if the user can correct it."""
        self._say(DeviceCannot(why, refused))

    async def keep(self, stops: Callable[[], None]) -> None:
        """Send signs of life; call `stops` when the process above stops all. Never returns."""
        self._kept.set()
        asyncio.get_running_loop().add_reader(self._channel, self._hear, stops)
        try:
            while True:
                self._say(DeviceAlive())
                await asyncio.sleep(BEAT_S)
        finally:
            asyncio.get_running_loop().remove_reader(self._channel)

    def _hear(self, stops: Callable[[], None]) -> None:
        try:
            for _ in self._channel.hear():
                stops()
        except Broken:  # the process above has died, and the kernel ends this one
            asyncio.get_running_loop().remove_reader(self._channel)

    def _beat(self) -> None:
        while not self._kept.wait(BEAT_S):
            self._say(DeviceAlive())

    def _say(self, message: FromDevice) -> None:
        with self._saying, contextlib.suppress(Broken):
            self._channel.say(message)
