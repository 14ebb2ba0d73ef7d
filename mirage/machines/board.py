"""News of devices, passed on to all listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from mirage.machines.seam import DeviceNews


class NewsBoard:
    """Passes news on to each listener, from its first wait on."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[DeviceNews]] = set()

    def tell(self, news: DeviceNews) -> None:
        """Pass news on to all listeners."""
        for one in self._listeners:
            one.put_nowait(news)

    async def news(self) -> AsyncIterator[DeviceNews]:
        """All news from the first wait on; never ends."""
        queue: asyncio.Queue[DeviceNews] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)
