"""This machine alone, without a cluster: one server process for each device, kept by this
process.

`mirage serve` of one machine uses only `start`. It asks device servers by their sockets, because
answers keep their content type there, streams pass, and a slow answer takes no thread; and its
`DeviceKeeper` objects, which are in the same process, tell it more than facts and news could. Only
the test of the seam's contract calls the other operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from mirage.machines.asking import asked
from mirage.machines.board import NewsBoard
from mirage.machines.facts import FactsFolder
from mirage.machines.keeper import DeviceKeeper
from mirage.machines.seam import DeviceAnswer, DeviceCall, DeviceNews, MachineThere

HERE = "this machine"


class LocalMachines:
    """`Machines` with this machine alone. Run `keep` after starting each device, and call `stop` at
    the end."""

    def __init__(
        self,
        keepers: Sequence[DeviceKeeper],
        sockets: Mapping[str, Path],
        facts: Path,
        board: NewsBoard,
    ) -> None:
        """`sockets` are the device servers' admin sockets; `facts` is the folder of facts.

        The `keepers` pass servers that are ready, and their ends, to the `board`.
        """
        self.keepers = {one.name: one for one in keepers}
        self._sockets, self._facts, self._board = dict(sockets), FactsFolder(facts), board
        self._begun: set[str] = set()
        """Devices whose servers are kept."""
        self._keeping: set[asyncio.Task[None]] = set()
        self._fails: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def there(self) -> Sequence[MachineThere]:
        """This machine alone."""
        return [MachineThere(HERE, "127.0.0.1", HERE)]

    async def start(self, device: str, machine: str, order: bytes) -> None:
        """Start a device's server by an order. If this object has started one already, that server
        goes on, and only the next one begins with this order. If the server ends, another one is
        started.

        Engines that another server of this device has left are adopted.
        """
        keeper = self.keepers[device]
        keeper.order = order
        if device in self._begun:
            return
        self._begun.add(device)
        task = asyncio.create_task(keeper.keep(), name=f"keep {device}")
        self._keeping.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._keeping.discard(task)
        if not task.cancelled() and not self._fails.done() and (error := task.exception()):
            self._fails.set_exception(error)

    async def keep(self) -> None:
        """Wait until a keeper fails, and raise its error. Never returns."""
        await asyncio.shield(self._fails)

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        """Send a request to the admin socket of a device's server. Raises `MachineAway` if the
        server cannot be reached."""
        return await asyncio.to_thread(asked, self._sockets[device], call)

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        """Keep a fact, a small value by key, in a file. With `absent`, keep it only if the key has
        none; False if it has one. Raises `OSError` if the file cannot be written.
        """
        return self._facts.put(key, value, absent=absent)

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        """Facts whose keys begin with `prefix`, from their files. Raises `OSError` if a file cannot
        be read.
        """
        return self._facts.beginning(prefix)

    def news(self) -> AsyncIterator[DeviceNews]:
        """Each device that is lost or back, from the first wait on; never ends."""
        return self._board.news()

    # -- the end ------------------------------------------------------------------------

    def stops(self) -> None:
        """Tell all servers that the machine stops: engines that they leave from now on are ended
        immediately.
        """
        for keeper in self.keepers.values():
            keeper.stops()

    async def stop(self) -> None:
        """End all servers with their engines. Idempotent."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(keeper.stop() for keeper in self.keepers.values()))

    def kill(self) -> None:
        """Kill all servers immediately; see `DeviceKeeper.kill`."""
        for keeper in self.keepers.values():
            keeper.kill()
