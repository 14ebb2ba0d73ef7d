"""The keeper of weights on the side of `mirage serve`: its process, and messages to and from it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mirage.config import Config, ConfigError
from mirage.keeper.messages import (
    EndKeeper,
    ForgetTenant,
    FromKeeper,
    KeeperLease,
    KeeperReady,
    KeepFor,
    ListenAgain,
    MastersTold,
    NewServer,
)
from mirage.processes.marks import MarkedProcess
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.stopped import watch_for_stops
from mirage.serve.adoption.book import RunBook
from mirage.serve.launch.host_limits import host_parts
from mirage.wire import Broken, Channel
from vmm.host_memory import host_memory

logger = logging.getLogger("mirage.serve.device.weights_keeper")

PROGRAM = (sys.executable, "-m", "mirage.keeper.process")
START_S, END_S = 60.0, 5.0
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Least and greatest seconds between the end of a keeper and the next start. The pause doubles
after each keeper that lived no longer than the greatest.
"""
NOTHING = MastersTold([], 0, 0, 0)


class KeeperBounds(NamedTuple):
    """Most bytes of masters: those that no engine uses, and all of them."""

    idle: int
    most: int


def bounds(config: Config) -> KeeperBounds:
    """Bounds of the keeper: host memory of the machine or control group, less what the
    configuration takes of it for the device and the tiers.

    Without `keeper.idle_bytes`, idle masters may take half of that.
    """
    most = max(0, host_memory().bytes - sum(host_parts(config)))
    idle = config.keeper.idle_bytes
    return KeeperBounds(most // 2 if idle is None else min(idle, most), most)


class WeightsKeeper:
    """Process of the keeper of weights; there is none until a tenant's weights are to be kept.

    `changed` is called with a tenant, and true or false, when its weights begin or cease to be
    kept.
    """

    def __init__(
        self,
        config: Config,
        path: Path,
        reaper: ReaperClient,
        changed: Callable[[str, bool], None],
        say: Callable[[str], None],
        book: RunBook,
    ) -> None:
        """`path` is the keeper's socket. `book` records the process. `say` gets lines for the
        operator.
        """
        self._book, self._lease_s = book, config.lease_s
        self._path, self._reaper, self._changed, self._say = path, reaper, changed, say
        self._wanted = asyncio.Event()
        self._declared: frozenset[str] = frozenset()
        """Tenants whose weights are to be kept."""
        self._outdated: set[str] = set()
        """Tenants with a living engine whose weights are no longer the declared ones."""
        self._bounds, self._hang_s = bounds(config), config.hang_s
        self._process: subprocess.Popen[bytes] | MarkedProcess | None = None
        self._channel: Channel[FromKeeper]
        self._told = NOTHING
        self._ended = asyncio.Event()
        self._up = False
        """True while a keeper is connected."""
        self.declares(config)

    def declares(self, config: Config) -> None:
        """Replace the tenants; `keep` starts a process once one of them needs it."""
        self._declared = frozenset(t.name for t in config.tenants if config.keeps_weights(t))
        if self._declared:
            self._wanted.set()
        self._say_for_whom()

    def forget(self, tenant: str, *, lives: bool = False) -> None:
        """Keep a tenant's weights no longer than its present engine lives.

        `lives` is true if it has an engine: weights that this engine brings to a later keeper are
        not kept either.
        """
        if self._up:
            self._channel.tell(ForgetTenant(tenant))
        if lives:
            self._outdated.add(tenant)
            self._say_for_whom()

    def starts(self, tenant: str) -> None:
        """Note that an engine starts, and that none of the tenant's earlier ones is left."""
        if tenant in self._outdated:
            self._outdated.remove(tenant)
            self._say_for_whom()

    def _say_for_whom(self) -> None:
        """Tell the keeper the tenants whose weights it shall keep: all that are declared to, except
        those whose present weights are outdated. Each new keeper has to be told."""
        if self._up:
            self._channel.tell(KeepFor(sorted(self._declared - self._outdated)))

    def kept(self, tenant: str) -> bool:
        """True if the keeper has a complete master of the tenant's weights, whether the tenant has
        an engine or not."""
        return tenant in self._told.tenants

    def state(self) -> dict[str, int] | None:
        """Number of masters (copies of all weights of a model), their bytes in use and idle, and
        the bound of the idle bytes; None if no tenant's weights were ever to be kept.
        """
        if not self._wanted.is_set():
            return None
        told = self._told
        parts = {"used_bytes": told.used_bytes, "idle_bytes": told.idle_bytes}
        return {"masters": told.masters, **parts, "idle_most_bytes": self._bounds.idle}

    def start(self) -> None:
        """Start the keeper's process before any engine, if one is wanted and none is up.

        Raises `ConfigError` if it cannot be started.
        """
        if self._wanted.is_set() and not self._up:
            try:
                self._start()
            except (OSError, Broken) as error:
                raise ConfigError(
                    f"no keeper of weights can be started ({error}): set keep_weights: none"
                ) from None
            self._listen()

    def adopt(self, process: MarkedProcess) -> bool:
        """Take over the keeper that a server has left; False if it does not answer, and is
        ended.
        """
        there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        there.settimeout(END_S)
        self._channel, self._process = Channel(there, FromKeeper), process
        self._reaper.began(process.pid)
        try:
            there.connect(str(self._path))
            self._channel.say(NewServer())
            if not isinstance(self._channel.wait()[0], KeeperReady):
                raise Broken("it does not say that it is ready")
        except (OSError, Broken):
            process.send_signal(signal.SIGKILL)
            self._end()
            return False
        self._wanted.set()
        self._book.keeper(process.pid)
        self._listen()
        watch_for_stops(process, self._hang_s)
        return True

    async def keep(self) -> None:
        """Start a keeper when one is first needed, and another one whenever it ends. Never
        returns.
        """
        await self._wanted.wait()
        if self._process is None:
            await self._start_again(0.0)
        pause = PAUSE_S
        while True:
            begun = time.monotonic()
            await self._ended.wait()
            self._ended.clear()
            await asyncio.to_thread(self._end)
            self._hear(NOTHING)
            self._say(
                "the keeper of weights ended: starts read checkpoints until another one is up"
            )
            pause = PAUSE_S if time.monotonic() - begun > LONGEST_PAUSE_S else pause * 2
            await self._start_again(min(pause, LONGEST_PAUSE_S))
            self._say("another keeper of weights is up")

    async def _start_again(self, pause: float) -> None:
        """Start a keeper after `pause` seconds; try again with longer pauses until one is up."""
        while True:
            await asyncio.sleep(pause)
            try:
                await asyncio.to_thread(self._start)
            except (OSError, Broken) as error:
                logger.warning("no keeper of weights can be started: %s", error)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            self._listen()
            return

    async def listen(self) -> bool:
        """Let the keeper listen at a new socket; False if no keeper is up."""
        if not self._up:
            return False
        self._channel.tell(ListenAgain())
        return True

    async def stop(self) -> None:
        """Stop the keeper, after all engines; its memory is free then. Idempotent."""
        await asyncio.to_thread(self._end)

    # -- the process --------------------------------------------------------------------

    def _start(self) -> None:
        """Start the process; return once engines may ask it.

        Raises `OSError` if it cannot be started or does not answer in time, and `Broken` if it ends
        or answers with anything but `KeeperReady`. The process has ended then.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(START_S)
        self._channel = Channel(ours, FromKeeper)
        with theirs:
            fd, sizes = theirs.fileno(), (self._bounds.idle, self._bounds.most)
            words = [*PROGRAM, str(self._path), *map(str, (fd, *sizes))]
            try:
                self._process = subprocess.Popen(
                    words, pass_fds=(fd,), stdin=subprocess.DEVNULL, start_new_session=True
                )
            except OSError:
                self._channel.close()
                raise
        self._reaper.began(self._process.pid)
        self._book.keeper(self._process.pid)
        try:
            message = self._channel.wait()[0]
            if not isinstance(message, KeeperReady):
                raise Broken(f"it began with {type(message).__name__}")
        except (OSError, Broken):
            self._end()
            raise
        watch_for_stops(self._process.pid, self._hang_s)

    def _end(self) -> None:
        """Tell the keeper to end, close its channel, and kill it if it has not ended in time."""
        if (process := self._process) is None:
            return
        self._process, self._up = None, False
        self._channel.tell(EndKeeper())
        self._channel.shut()
        try:
            process.wait(END_S)
        except (subprocess.TimeoutExpired, TimeoutError):
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._channel.close()
        self._reaper.over(process.pid)
        self._book.keeper(None)
        self._path.unlink(missing_ok=True)

    # -- what it says -------------------------------------------------------------------

    def _listen(self) -> None:
        self._up = True
        self._channel.socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._read)
        self._channel.tell(KeeperLease(self._lease_s))
        self._say_for_whom()
        while (heard := self._channel.next()) is not None:  # it came with the answer
            self._heard(heard[0])

    def _read(self) -> None:
        try:
            for message in self._channel.hear():
                self._heard(message)
        except Broken:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._ended.set()

    def _heard(self, message: FromKeeper) -> None:
        if isinstance(message, MastersTold):
            self._hear(message)

    def _hear(self, told: MastersTold) -> None:
        before, self._told = set(self._told.tenants), told
        for tenant in before.symmetric_difference(told.tenants):
            self._changed(tenant, tenant in told.tenants)
