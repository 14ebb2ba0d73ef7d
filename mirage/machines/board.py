"""News of devices for whoever listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from mirage.machines.seam import DeviceNews


class NewsBoard:
    """Each listener gets all that is told from its first wait on."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[DeviceNews]] = set()

    def tell(self, news: DeviceNews) -> None:
        """Tell all that listen."""
        for one in self._listeners:
            one.put_nowait(news)

    async def news(self) -> AsyncIterator[DeviceNews]:
        """All that is told from now on, without an end."""
        queue: asyncio.Queue[DeviceNews] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)
