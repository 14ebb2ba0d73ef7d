"""This machine alone, without any cluster: a process for each device, kept by this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from mirage.machines.asking import asked
from mirage.machines.board import NewsBoard
from mirage.machines.facts import FactsFolder
from mirage.machines.keeper import DeviceKeeper
from mirage.machines.seam import DeviceAnswer, DeviceCall, DeviceNews, MachineAway, MachineThere

HERE = "this machine"


class LocalMachines:
    """`Machines` of one. `keep` has to run after each device's `start`, and `stop` to follow."""

    def __init__(
        self,
        keepers: Sequence[DeviceKeeper],
        sockets: Mapping[str, Path],
        facts: Path,
        board: NewsBoard,
    ) -> None:
        """`sockets` are the device servers', for operators; `facts` is a folder.

        The `keepers` tell the `board` of servers that end and that are ready.
        """
        self.keepers = {one.name: one for one in keepers}
        self._sockets, self._facts, self._board = dict(sockets), FactsFolder(facts), board
        self._keeping: set[asyncio.Task[None]] = set()
        self._fails: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def there(self) -> Sequence[MachineThere]:
        """See `Machines`."""
        return [MachineThere(HERE, "127.0.0.1", HERE)]

    async def start(self, device: str, machine: str, order: bytes) -> None:
        """See `Machines`: what another server of this device has left is adopted."""
        keeper = self.keepers[device]
        if keeper.order == order:
            return
        if keeper.order:
            raise MachineAway(f"device {device!r} has another order: stop it first")
        keeper.order = order
        task = asyncio.create_task(keeper.keep(), name=f"keep {device}")
        self._keeping.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._keeping.discard(task)
        if not task.cancelled() and not self._fails.done() and (error := task.exception()):
            self._fails.set_exception(error)

    async def keep(self) -> None:
        """Never returns: it fails with what a keeper fails with."""
        await asyncio.shield(self._fails)

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        """See `Machines`."""
        return await asyncio.to_thread(asked, self._sockets[device], call)

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        """See `Machines`. Raises `OSError`."""
        return self._facts.put(key, value, absent=absent)

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        """See `Machines`. Raises `OSError`."""
        return self._facts.beginning(prefix)

    def news(self) -> AsyncIterator[DeviceNews]:
        """See `Machines`."""
        return self._board.news()

    # -- the end ------------------------------------------------------------------------

    def stops(self) -> None:
        """All are about to stop: what servers leave from now on is ended at once."""
        for keeper in self.keepers.values():
            keeper.stops()

    async def stop(self) -> None:
        """End all servers with their engines. Idempotent."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(keeper.stop() for keeper in self.keepers.values()))

    def kill(self) -> None:
        """End all servers at once; see `DeviceKeeper.kill`."""
        for keeper in self.keepers.values():
            keeper.kill()
