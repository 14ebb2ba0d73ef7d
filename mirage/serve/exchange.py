"""The depot that engines hand pages over through, as `mirage serve` has it (`device.exchange`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from vmm.depot import Depot


class Exchange:
    """Nothing at all without a `socket`: then engines release and create pages."""

    def __init__(self, socket: Path | None) -> None:
        self._depot = None if socket is None else Depot(socket)

    def start(self) -> None:
        """Before any engine. Raises `OSError`."""
        if self._depot is not None:
            self._depot.start()

    async def listen(self) -> bool:
        """Make the socket again. False if there is no depot, or no more; raises `ValueError`."""
        if self._depot is None or not self._depot.serving:
            return False
        await asyncio.wrap_future(self._depot.listen())
        return True

    async def stop(self) -> None:
        """What it holds is free then. Idempotent."""
        if self._depot is not None:
            await asyncio.to_thread(self._depot.stop)

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Inside, nothing is in the depot: an engine that starts allocates without asking it."""
        if self._depot is None:
            yield
            return
        dropped = self._depot.shut()
        try:
            await asyncio.wrap_future(dropped)
            yield
        finally:
            self._depot.open()

    def counts(self) -> dict[str, int] | None:
        """Pages, as `vmm.depot.Counts` names them; None without a depot."""
        return None if self._depot is None else self._depot.counts()
