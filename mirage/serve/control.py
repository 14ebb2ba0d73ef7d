"""The control server: engines on a Unix socket, the pure controller behind it.

The only place where the controller meets a clock and I/O. An engine's end of file is its
death certificate; a connection that breaks the protocol is closed, and harms no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from mirage.control.ledger import LedgerError
from mirage.control.targets import DoesNotFitError
from mirage.protocol import (
    BEAT_S,
    PROTOCOL_VERSION,
    Alive,
    Allotment,
    Hello,
    Refusal,
    Report,
    Shutdown,
    ToEngine,
    Turn,
    decode_from_engine,
    encode,
)
from mirage.serve.registry import Registry

logger = logging.getLogger("mirage.serve.control")

LONGEST_WAIT_S = 0.5
"""Between two decisions, whatever was heard."""
HELLO_S = 10.0
"""Seconds in which a new connection must introduce itself."""


class Decides(Protocol):
    """Who decides: events in, messages out; `mirage.control.arbiter.Arbiter` is the real one.

    A `DoesNotFitError` or `LedgerError` from an event means that the engine broke its promises.
    """

    def joined(self, hello: Hello, now: float) -> None: ...

    def reported(self, tenant: str, report: Report, now: float) -> None: ...

    def lost(self, tenant: str, now: float) -> None: ...

    def decide(self, now: float) -> Iterable[tuple[str, Turn | Allotment | Refusal]]: ...

    def next_deadline(self, now: float) -> float | None: ...


class ProtocolViolation(Exception):
    """A connection that does not keep the protocol; the message says how."""


class ControlServer:
    """Engines come and go: `on_joined` is called with the tenant's name, `on_lost` with the
    name and why its connection was closed (None: the engine closed it)."""

    def __init__(
        self,
        arbiter: Decides,
        registry: Registry,
        *,
        on_joined: Callable[[str], None] = lambda tenant: None,
        on_lost: Callable[[str, str | None], None] = lambda tenant, reason: None,
    ) -> None:
        self._arbiter = arbiter
        self._registry = registry
        self._on_joined = on_joined
        self._on_lost = on_lost
        self._engines: dict[str, asyncio.StreamWriter] = {}
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._deciding: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    async def start(self, path: Path) -> None:
        """Listen and begin to decide."""
        self._server = await asyncio.start_unix_server(self._connected, str(path))
        self._deciding = asyncio.create_task(self._decide(), name="decide")
        self._beating = asyncio.create_task(self._beat(), name="beat")

    async def watch(self) -> None:
        """Never returns; raises what stopped the deciding."""
        assert self._deciding is not None, "start comes first"
        await asyncio.shield(self._deciding)

    def wake(self) -> None:
        """Decide anew: something changed that no engine said."""
        self._news.set()

    async def stop(self) -> None:
        """Tell all engines to exit and close the socket. Idempotent."""
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
            async with asyncio.timeout(HELLO_S):
                hello = self._known(await _next(reader))
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
        """From an engine's hello to its end."""
        tenant, reason = hello.tenant, None
        try:
            self._join(hello, writer)
            while (message := await _next(reader)) is not None:
                self._reported(tenant, message)
        except (ProtocolViolation, LedgerError, DoesNotFitError) as error:
            reason = str(error)
            raise ProtocolViolation(f"tenant {tenant!r}: {error}") from None
        finally:
            self._lost(tenant, reason)

    def _known(self, hello: Hello | Report | None) -> Hello:
        """Raises `ProtocolViolation` unless this is the hello of a tenant that is awaited."""
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
        return hello

    def _join(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        self._engines[hello.tenant] = writer
        self._arbiter.joined(hello, time.monotonic())
        self._registry.shapes[hello.tenant] = hello.shape
        logger.info(
            "joined tenant=%s pid=%d held_bytes=%d", hello.tenant, hello.pid, hello.held_bytes
        )
        self._on_joined(hello.tenant)
        self._news.set()

    def _reported(self, tenant: str, report: Hello | Report) -> None:
        if not isinstance(report, Report):
            raise ProtocolViolation("a second hello")
        self._arbiter.reported(tenant, report, time.monotonic())
        self._registry.reports[tenant] = report
        self._news.set()

    def _lost(self, tenant: str, reason: str | None) -> None:
        del self._engines[tenant]
        self._registry.reports.pop(tenant, None)
        # Its end is made sure of before its memory is lent out again.
        self._on_lost(tenant, reason)
        self._arbiter.lost(tenant, time.monotonic())
        logger.info("lost tenant=%s", tenant)
        self._news.set()

    # -- deciding -----------------------------------------------------------------------

    async def _decide(self) -> None:
        """Whenever something was heard, and when time alone changes what is right."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._news.wait()
            self._news.clear()
            for tenant, command in self._arbiter.decide(time.monotonic()):
                _log(tenant, command)
                self._send(tenant, command)

    async def _beat(self) -> None:
        """Show every engine that there will be answers; one that does not listen is spared."""
        while True:
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


async def _next(reader: asyncio.StreamReader) -> Hello | Report | None:
    """The next message, None at the end. Raises `ProtocolViolation`."""
    try:
        line = await reader.readline()
    except ValueError as error:  # longer than the reader's limit
        raise ProtocolViolation(str(error)) from None
    if not line:
        return None
    try:
        return decode_from_engine(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"{error} in {line[:200]!r}") from None


def _log(tenant: str, command: Allotment | Refusal | Turn) -> None:
    fields = " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(command).items())
    logger.info("%s tenant=%s %s", type(command).__name__.lower(), tenant, fields)
