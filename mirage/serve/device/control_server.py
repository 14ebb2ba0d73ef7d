"""Control server: engines connect at a Unix socket, and the pure controller decides for them.

It is the only place where the controller meets a clock and I/O. The end of an engine's connection
is taken for its death. A connection that breaks the protocol is closed, and disturbs no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from mirage.config import HANG_S
from mirage.control.ledger import LedgerError
from mirage.control.liveness import RunningTime, Vitals
from mirage.control.targets import DoesNotFitError
from mirage.protocol import (
    BEAT_S,
    PROTOCOL_VERSION,
    Alive,
    Allotment,
    CoreFailed,
    EngineLease,
    FromEngine,
    Hello,
    Pulse,
    Refusal,
    Report,
    Shutdown,
    Stepped,
    ToEngine,
    Turn,
)
from mirage.serve.engines.time_limit import within
from mirage.serve.launch.programs import HELLO_S
from mirage.serve.registry.registry import Registry
from mirage.wire import Broken, Decoder, encode, receive

logger = logging.getLogger("mirage.serve.device.control_server")

LONGEST_WAIT_S = 0.5
"""Most seconds between two decisions, also if nothing is heard."""
LONGEST_TICK_S = 2 * BEAT_S
"""Seconds up to which the time between two beats counts as time in which this process ran; a longer
one counts as so many seconds (`RunningTime`).
"""


ToTenant = Turn | Allotment | Refusal
"""Messages that the deciding object sends to engines."""
_MESSAGES: Decoder[FromEngine] = Decoder(FromEngine)


class Decides(Protocol):
    """Deciding object: takes events and returns messages, as `mirage.control.arbiter.Arbiter` does.

    A `DoesNotFitError` or `LedgerError` for an event means that the engine broke its promises.
    Times are seconds.
    """

    def joined(self, hello: Hello, now: float) -> None: ...

    def reported(self, tenant: str, report: Report, now: float) -> None: ...

    def sleeps(self, tenant: str, now: float) -> Iterable[tuple[str, ToTenant]]: ...

    def wakes(self, tenant: str, now: float) -> None: ...

    def goes_on(self, tenant: str, now: float) -> None: ...

    def ends(self, tenant: str, now: float) -> None: ...

    def lost(self, tenant: str, now: float) -> None: ...

    def decide(self, now: float) -> Iterable[tuple[str, ToTenant]]: ...

    def next_deadline(self, now: float) -> float | None: ...


class Keepers(Protocol):
    """Managers of engines, as the control server calls them: they start and end engines, and hear
    the news about them.
    """

    def unwelcome(self, hello: Hello) -> str:
        """Reason to refuse an engine that connects for the first time or again; empty to accept
        it.
        """

    def came(self, tenant: str, pid: int) -> None:
        """Note that the tenant's engine said hello from process `pid`."""

    def joined(self, tenant: str) -> None:
        """Note that the tenant's engine has its memory in the ledger, and takes part."""

    def reported(self, tenant: str, report: Report) -> None:
        """Note a report of the tenant's engine, which is in the ledger already."""

    def stepped(self, tenant: str, free_bytes: int, total_bytes: int) -> None:
        """Note that the tenant's model has computed a first request, which is the engine's own: no
        client's comes before it.

        `free_bytes` and `total_bytes` are the device's memory after that; 0 for host memory.
        """

    async def lost(self, tenant: str, reason: str | None) -> None:
        """Handle the end of an engine's connection.

        `reason` is set if this server closed it, None if the engine did. Returns once the process
        has ended: its memory is lent to others from then on.
        """

    def failed(self, tenant: str, error: str, fault: str) -> None:
        """Note that the engine's core ends over an exception of class `error`.

        `fault` names a fault of the GPU behind it; it is empty or unknown for other exceptions.
        """

    def hangs(self, tenant: str, why: str) -> None:
        """End an engine that shows no sign of life, or no progress."""


class Unkept:
    """`Keepers` that start and end no engines, for measurements of the control server itself."""

    def unwelcome(self, hello: Hello) -> str:
        """Reason to refuse an engine that comes back: none is expected. Empty for a new one."""
        return "" if hello.holdings is None else "nobody awaits it"

    def came(self, tenant: str, pid: int) -> None:
        """Do nothing."""

    def joined(self, tenant: str) -> None:
        """Do nothing."""

    def reported(self, tenant: str, report: Report) -> None:
        """Do nothing."""

    def stepped(self, tenant: str, free_bytes: int, total_bytes: int) -> None:
        """Do nothing."""

    async def lost(self, tenant: str, reason: str | None) -> None:
        """Do nothing."""

    def failed(self, tenant: str, error: str, fault: str) -> None:
        """Do nothing."""

    def hangs(self, tenant: str, why: str) -> None:
        """Do nothing: the engine that hangs is not ended."""


class ProtocolViolation(Exception):
    """Breach of the protocol by a connection; the message says which."""


class ControlServer:
    """Server for engines: it decides about their memory, tells `keepers` of them, and checks that
    each lives.
    """

    def __init__(
        self,
        arbiter: Decides,
        registry: Registry,
        keepers: Keepers,
        *,
        hang_s: float = HANG_S,
        first_step_s: float = 0.0,
        on_host: bool = False,
        lease_s: float = 0.0,
    ) -> None:
        """An engine is taken for hung after `hang_s` seconds without progress at the earliest; a
        first step, which may compile, has `first_step_s` seconds more. `on_host` is True if steps
        are computed by the processors and not by a GPU.

        Engines go on for `lease_s` seconds if this process is killed; 0 ends them with it.
        """
        self._lease_s = lease_s
        self._arbiter, self._registry, self._keepers = arbiter, registry, keepers
        self._hang_s, self._first_step_s, self._on_host = hang_s, first_step_s, on_host
        self._engines: dict[str, asyncio.StreamWriter] = {}
        self._vitals: dict[str, Vitals] = {}
        self.running = RunningTime(LONGEST_TICK_S)
        self.decisions = 0
        """Number of decisions so far; one is made every `LONGEST_WAIT_S` at least."""
        self._news = asyncio.Event()
        self._parting = asyncio.Event()
        """Set when the next engine is lost, then replaced by a new event."""
        self._server: asyncio.Server | None = None
        self._deciding: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._fault: asyncio.Future[None]
        """Gets the error of an engine whose end failed; its memory then stays in the ledger."""

    async def start(self, path: Path) -> None:
        """Listen for engines, and begin to decide. Raises `OSError` if no socket can be made at
        `path`.
        """
        await self.open(path)
        self.begin()

    async def open(self, path: Path) -> None:
        """Listen for engines, but decide nothing before `begin`. Raises `OSError` if no socket can
        be made at `path`.

        Engines that go on after a takeover have to connect before `begin`, because the memory of an
        engine counts as free until it has connected.
        """
        self._fault = asyncio.get_running_loop().create_future()
        await self.listen(path)

    def begin(self) -> None:
        """Begin to decide and to send beats, after `open`."""
        self._deciding = asyncio.create_task(self._decide(), name="decide")
        self._beating = asyncio.create_task(self._beat(), name="beat")

    async def listen(self, path: Path) -> None:
        """Listen at a new socket file; connected engines stay. Raises `OSError` if no socket can be
        made at `path`.
        """
        before = self._server
        self._server = await asyncio.start_unix_server(self._connected, str(path))
        if before is not None:
            before.close()

    async def watch(self) -> None:
        """Wait for ever. Raises the error that ended the deciding or the signs of life to engines,
        or with which the end of an engine failed.
        """
        assert self._deciding is not None and self._beating is not None, "start comes first"
        work = (self._deciding, self._beating, self._fault)
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def is_in_step(self, tenant: str) -> bool:
        """True if the tenant's engine is connected, has requests, and has ended no step for some
        seconds (`Vitals.is_in_step`).
        """
        vitals = self._vitals.get(tenant)
        return vitals is not None and vitals.is_in_step(self.running.seconds)

    def had_requests(self, tenant: str) -> float:
        """Time at which the engine last had a request, in seconds by the clock `running`; the
        present time if that is not known.
        """
        now, vitals = self.running.seconds, self._vitals.get(tenant)
        return now if vitals is None else vitals.had_requests(now)

    async def parted(self, tenant: str) -> None:
        """Return once no engine of the tenant is connected, and its memory counts as free."""
        while tenant in self._engines:
            await self._parting.wait()

    def wake(self) -> None:
        """Decide anew soon, because something changed that no engine reports."""
        self._news.set()

    def puts_to_sleep(self, tenant: str) -> None:
        """Tell an engine to give all memory that it can; nothing happens if it is not connected."""
        if tenant in self._vitals:
            self._tell(self._arbiter.sleeps(tenant, time.monotonic()))
            self._news.set()

    def wakes(self, tenant: str) -> None:
        """Let a sleeping tenant have memory again; nothing happens if it is not connected."""
        if tenant in self._vitals:
            self._arbiter.wakes(tenant, time.monotonic())
            self._news.set()

    def goes_on(self, tenant: str) -> None:
        """Note that an adopted engine is awake. If the killed server had told it to sleep, and it
        has not fallen asleep yet, it is woken.
        """
        self._arbiter.goes_on(tenant, time.monotonic())

    async def stop(self) -> None:
        """Stop deciding, tell all engines to exit, and close the socket. Idempotent."""
        tasks = [task for task in (self._deciding, self._beating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._deciding = self._beating = None
        for tenant in list(self._engines):
            self._send(tenant, Shutdown())
        if self._server is not None:
            self._server.close()
            self._server = None

    # -- one connection -----------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = self._known(await within(HELLO_S, lambda: self.running.seconds, _next(reader)))
            await self._listen(hello, reader, writer)
        except ProtocolViolation as error:
            logger.error("connection closed reason=%s", error)
        except TimeoutError:
            logger.error("connection closed reason=no hello in %g s", HELLO_S)
        except OSError as error:
            logger.warning("connection failed error=%s", error)
        finally:
            writer.close()

    async def _listen(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection from the engine's hello to its end."""
        tenant, reason = hello.tenant, None
        try:
            self._join(hello, writer)
            while (message := await _next(reader)) is not None:
                self._hear(tenant, message)
        except (ProtocolViolation, LedgerError, DoesNotFitError) as error:
            reason = str(error)
            raise ProtocolViolation(f"tenant {tenant!r}: {error}") from None
        finally:
            await self._lost(tenant, reason)

    def _known(self, hello: FromEngine | None) -> Hello:
        """The first message as a hello. Raises `ProtocolViolation` unless it is one of an expected
        engine.
        """
        if hello is None:
            raise ProtocolViolation("it was closed before its hello")
        if not isinstance(hello, Hello):
            raise ProtocolViolation(f"the first message is not a hello but {type(hello).__name__}")
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolViolation(
                f"protocol version {hello.version} of tenant {hello.tenant!r}, "
                f"this server speaks {PROTOCOL_VERSION}"
            )
        if hello.tenant not in self._registry.backends:
            raise ProtocolViolation(f"no tenant is named {hello.tenant!r}")
        if hello.tenant in self._engines:
            raise ProtocolViolation(f"tenant {hello.tenant!r} is connected already")
        if why := self._keepers.unwelcome(hello):
            came = "came" if hello.holdings is None else "came back"
            raise ProtocolViolation(f"an engine of tenant {hello.tenant!r} {came}, and {why}")
        return hello

    def _join(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        self._engines[hello.tenant] = writer
        self._vitals[hello.tenant] = Vitals(
            self.running.seconds, self._hang_s, self._first_step_s, on_host=self._on_host
        )
        self._keepers.came(hello.tenant, hello.pid)
        self._arbiter.joined(hello, time.monotonic())
        self._registry.shapes[hello.tenant] = hello.shape
        if hello.holdings is not None:
            self._registry.reports[hello.tenant] = hello.holdings.report
        if self._lease_s:
            self._send(hello.tenant, EngineLease(self._lease_s))
        logger.info(
            "joined tenant=%s pid=%d held_bytes=%d", hello.tenant, hello.pid, hello.held_bytes
        )
        self._keepers.joined(hello.tenant)
        self._news.set()

    def _hear(self, tenant: str, message: FromEngine) -> None:
        if isinstance(message, Report):
            self._vitals[tenant].reported(message, self.running.seconds)
            self._reported(tenant, message)
        elif isinstance(message, Pulse):
            self._vitals[tenant].pulsed(message, self.running.seconds)
        elif isinstance(message, Stepped):
            self._keepers.stepped(tenant, message.free_bytes, message.total_bytes)
        elif isinstance(message, CoreFailed):
            self._keepers.failed(tenant, message.error, message.fault)
        else:
            raise ProtocolViolation("a second hello")

    def _reported(self, tenant: str, report: Report) -> None:
        self._arbiter.reported(tenant, report, time.monotonic())
        self._registry.reports[tenant] = report
        self._keepers.reported(tenant, report)
        self._news.set()

    async def _lost(self, tenant: str, reason: str | None) -> None:
        self._engines[tenant].close()  # and sent nothing more
        del self._vitals[tenant]
        self._registry.lost(tenant)
        # Its end is made sure of before its memory is lent out again.
        try:
            await self._keepers.lost(tenant, reason)
        except Exception as error:
            if not self._fault.done():
                self._fault.set_exception(error)
            raise
        self._arbiter.lost(tenant, time.monotonic())
        del self._engines[tenant]
        logger.info("lost tenant=%s", tenant)
        self._news.set()
        self._parting.set()
        self._parting = asyncio.Event()

    # -- deciding -----------------------------------------------------------------------

    async def _decide(self) -> None:
        """Decide whenever something was heard, and at each deadline of the arbiter. Never
        returns.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._news.wait()
            self._news.clear()
            self._tell(self._arbiter.decide(time.monotonic()))
            self.decisions += 1

    def _tell(self, commands: Iterable[tuple[str, ToTenant]]) -> None:
        for tenant, command in commands:
            _log(tenant, command)
            if (vitals := self._vitals.get(tenant)) is not None:
                vitals.told(command, self.running.seconds)
            self._send(tenant, command)

    async def _beat(self) -> None:
        """Send signs of life to engines, and check theirs, every `BEAT_S` seconds. Never returns.

        An engine that does not read its messages gets no more signs. One that hangs is ended.
        """
        while True:
            self.running.tick(time.monotonic())
            for tenant, vitals in self._vitals.items():
                if why := vitals.hang(self.running.seconds):
                    self._keepers.hangs(tenant, why)
                    self._arbiter.ends(tenant, time.monotonic())
            for tenant, writer in self._engines.items():
                if not writer.transport.get_write_buffer_size():
                    self._send(tenant, Alive())
            await asyncio.sleep(BEAT_S)

    def _wait_s(self) -> float:
        now = time.monotonic()
        deadline = self._arbiter.next_deadline(now)
        return LONGEST_WAIT_S if deadline is None else min(LONGEST_WAIT_S, max(0, deadline - now))

    def _send(self, tenant: str, command: ToEngine) -> None:
        # Commands state what is wanted, not a change, so one that is not read in time may
        # wait in the buffer: nothing grows beyond a line per decision.
        if (writer := self._engines.get(tenant)) is not None and not writer.is_closing():
            writer.write(encode(command))


async def _next(reader: asyncio.StreamReader) -> FromEngine | None:
    """Next message, None at the end of the connection. Raises `ProtocolViolation` for bytes that
    are no message.
    """
    try:
        return await receive(reader, _MESSAGES)
    except Broken as error:
        raise ProtocolViolation(str(error)) from None


def _log(tenant: str, command: ToTenant) -> None:
    fields = " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(command).items())
    logger.info("%s tenant=%s %s", type(command).__name__.lower(), tenant, fields)
