"""The control server over real Unix sockets, with an arbiter that notes every event."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage.config import Config, Policy
from mirage.control.arbiter import Arbiter
from mirage.control.ledger import BrokenPromiseError
from mirage.protocol import (
    PROTOCOL_VERSION,
    Alive,
    Allotment,
    CoreFailed,
    Hello,
    ModelShape,
    Pulse,
    Refusal,
    Report,
    Shutdown,
    Stepped,
    ToEngine,
    Turn,
)
from mirage.serve.device.control_server import ControlServer
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.wire import HEADER, LONGEST, Decoder, encode, receive

pytestmark = pytest.mark.e2e

WAIT_S = 60
PAGE = 65536
SHAPE = ModelShape(4, PAGE, PAGE, PAGE, 1, 16, 40, 4, 4)
REPORT = Report(0, True, 4 * PAGE, 0, 1, 4, 0)


@dataclass
class NotingArbiter:
    """Arbiter that notes all calls. It returns the test's `commands` once, and raises an error for
    a report of more memory than the engine may hold.
    """

    events: list[tuple[str, str]] = field(default_factory=list)
    commands: list[tuple[str, Any]] = field(default_factory=list)
    decided: asyncio.Event = field(default_factory=asyncio.Event)

    def joined(self, hello: Hello, now: float) -> None:
        self.events.append(("joined", hello.tenant))

    def reported(self, tenant: str, report: Report, now: float) -> None:
        if report.held_bytes > 100 * PAGE:
            raise BrokenPromiseError(f"tenant {tenant!r} holds {report.held_bytes} bytes")
        self.events.append(("reported", tenant))

    def sleeps(self, tenant: str, now: float) -> list[tuple[str, Any]]:
        self.events.append(("sleeps", tenant))
        return []

    def wakes(self, tenant: str, now: float) -> None:
        self.events.append(("wakes", tenant))

    def ends(self, tenant: str, now: float) -> None:
        self.events.append(("ends", tenant))

    def lost(self, tenant: str, now: float) -> None:
        self.events.append(("lost", tenant))

    def decide(self, now: float) -> list[tuple[str, Any]]:
        self.decided.set()
        commands, self.commands = self.commands, []
        return commands

    def next_deadline(self, now: float) -> float | None:
        return now + 0.001 if self.commands else None


TOLD: Decoder[ToEngine] = Decoder(ToEngine)


def body(words: Any) -> bytes:
    """Frame of the protocol with any content, well formed or not."""
    made = words if isinstance(words, bytes) else msgspec.msgpack.encode(words)
    return HEADER.pack(len(made), 0) + made


class Engine:
    """The engine's end of one connection to the control server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, *messages: Hello | Report | bytes) -> None:
        for message in messages:
            self.writer.write(message if isinstance(message, bytes) else encode(message))
        await self.writer.drain()

    async def hear(self) -> Any:
        """Next message that is not a sign of life; None at the end of the connection."""
        while (message := await receive(self.reader, TOLD)) is not None:
            if message != Alive():
                return message
        return None

    def close(self) -> None:
        self.writer.close()


@dataclass
class Noting:
    """Stand-in for the keeper of engines, which records all calls. An engine counts as dead once
    `dead` is set.
    """

    on_joined: asyncio.Queue[str]
    on_lost: asyncio.Queue[tuple[str, str | None]]
    on_hung: asyncio.Queue[tuple[str, str]]
    on_failed: asyncio.Queue[tuple[str, str]]
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    steps: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    def unwelcome(self, hello: Hello) -> str:
        """Reason for which an engine is turned away: always empty here."""
        return ""

    def came(self, tenant: str, pid: int) -> None:
        assert pid

    def joined(self, tenant: str) -> None:
        self.on_joined.put_nowait(tenant)

    def reported(self, tenant: str, report: Report) -> None:
        self.states.append(tenant)

    def stepped(self, tenant: str, free_bytes: int, total_bytes: int) -> None:
        self.steps.append(tenant)

    async def lost(self, tenant: str, reason: str | None) -> None:
        self.on_lost.put_nowait((tenant, reason))
        await self.dead.wait()

    def failed(self, tenant: str, error: str, fault: str) -> None:
        self.on_failed.put_nowait((tenant, error))

    def hangs(self, tenant: str, why: str) -> None:
        self.on_hung.put_nowait((tenant, why))


@dataclass
class Site:
    path: Path
    server: ControlServer
    registry: Registry
    arbiter: Any
    joined: asyncio.Queue[str]
    lost: asyncio.Queue[tuple[str, str | None]]
    hung: asyncio.Queue[tuple[str, str]]
    failed: asyncio.Queue[tuple[str, str]]
    keepers: Noting

    async def engine(self, tenant: str = "", **changes: Any) -> Engine:
        """Open a connection of an engine. It says hello if a tenant is given."""
        engine = Engine(*await asyncio.open_unix_connection(str(self.path)))
        if tenant:
            hello = Hello(PROTOCOL_VERSION, tenant, 7, SHAPE, 4 * PAGE)
            await engine.say(msgspec.structs.replace(hello, **changes))
        return engine


@contextlib.asynccontextmanager
async def controlling(
    folder: Path, arbiter: Any, *, hang_s: float = 30.0, dead: bool = True
) -> AsyncIterator[Site]:
    """Run a control server while the block runs. With `dead`, an engine counts as dead as soon as
    its connection ends.
    """
    names = ("a", "b")
    registry = Registry(
        Policy.MIRAGE, 1 << 30, {n: TenantServer(n, folder / n, 128) for n in names}
    )
    joined: asyncio.Queue[str] = asyncio.Queue()
    lost: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()
    hung: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    failed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    keepers = Noting(joined, lost, hung, failed)
    if dead:
        keepers.dead.set()
    server = ControlServer(
        arbiter,
        registry,
        keepers,
        hang_s=hang_s,
    )
    path = folder / "control.sock"
    await server.start(path)
    try:
        async with asyncio.timeout(WAIT_S):
            yield Site(path, server, registry, arbiter, joined, lost, hung, failed, keepers)
    finally:
        await server.stop()


def run(folder: Path, scenario: Callable[[Site], Awaitable[None]], arbiter: Any = None) -> None:
    async def main() -> None:
        async with controlling(folder, arbiter or NotingArbiter()) as site:
            await scenario(site)

    asyncio.run(main())


def test_events_reach_the_arbiter_and_the_registry(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        engine = await site.engine("a")
        assert await site.joined.get() == "a"
        assert site.registry.shapes == {"a": SHAPE}
        await engine.say(REPORT)
        engine.close()
        assert await site.lost.get() == ("a", None)
        assert site.arbiter.events == [("joined", "a"), ("reported", "a"), ("lost", "a")]
        assert site.registry.reports == {}
        assert site.registry.shapes == {"a": SHAPE}  # the timeline has samples of it
        assert site.registry.history()["tenants"]["a"]["layers"] == SHAPE.layers

    run(tmp_path, scenario)


def test_commands_go_to_the_engine_they_are_for_in_order(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        a, b = await site.engine("a"), await site.engine("b")
        assert {await site.joined.get(), await site.joined.get()} == {"a", "b"}
        allotment = Allotment(1, 0, 1, 4, 9 * PAGE)
        site.arbiter.commands = [
            ("a", Turn(True)),
            ("b", Refusal(3)),
            ("a", allotment),
            ("gone", Refusal(1)),
        ]
        await a.say(REPORT)
        assert [await a.hear(), await a.hear()] == [Turn(True), allotment]
        assert await b.hear() == Refusal(3)

    run(tmp_path, scenario)


def test_a_decision_that_only_time_brings_is_sent(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        a = await site.engine("a")
        await site.joined.get()
        site.arbiter.commands = [("a", Turn(False))]
        assert await a.hear() == Turn(False)  # nobody said anything

    run(tmp_path, scenario)


HELLO = Hello(PROTOCOL_VERSION, "b", 7, SHAPE, 4 * PAGE)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n",
        b"\xff\xfe\x00\n\n",
        body(b"\xff\xfe\x00"),
        body({"type": "allotment", "revision": 1}),
        body({"type": "hello"}),
        HEADER.pack(LONGEST + 1, 0),
        HEADER.pack(1, 1) + b"\xc0",
        encode(REPORT),
        encode(msgspec.structs.replace(HELLO, version=PROTOCOL_VERSION + 1)),
        encode(msgspec.structs.replace(HELLO, tenant="c")),
        encode(msgspec.structs.replace(HELLO, tenant="a")),  # connected already
    ],
)
def test_a_bad_first_message_closes_only_its_own_connection(tmp_path: Path, first: bytes) -> None:
    async def scenario(site: Site) -> None:
        good = await site.engine("a")
        await site.joined.get()
        bad = await site.engine()
        with contextlib.suppress(ConnectionError):
            await bad.say(first)
        with contextlib.suppress(ConnectionError):
            assert await bad.hear() is None
        assert site.arbiter.events == [("joined", "a")]
        site.arbiter.commands = [("a", Turn(True))]
        await good.say(REPORT)
        assert await good.hear() == Turn(True)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"nonsense\n", "too large"),
        (body(b"nonsense"), "Expected `object`"),
        (encode(HELLO), "a second hello"),
        (body({"type": "report", "revision": "x"}), "Expected `int`"),
        (encode(msgspec.structs.replace(REPORT, held_bytes=101 * PAGE)), "holds 6619136 bytes"),
    ],
)
def test_an_engine_that_breaks_the_protocol_is_lost_with_the_reason(
    tmp_path: Path, message: bytes, words: str
) -> None:
    async def scenario(site: Site) -> None:
        good, bad = await site.engine("a"), await site.engine("b")
        await bad.say(message)
        assert await bad.hear() is None
        tenant, reason = await site.lost.get()
        assert tenant == "b"
        assert reason is not None and words in reason
        assert site.registry.reports == {}
        assert ("lost", "b") in site.arbiter.events
        site.arbiter.commands = [("a", Turn(True))]
        await good.say(REPORT)
        assert await good.hear() == Turn(True)

    run(tmp_path, scenario)


def test_a_first_step_is_told(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        engine = await site.engine("a")
        await engine.say(encode(Stepped()), REPORT)
        engine.close()
        await site.lost.get()
        assert site.keepers.steps == ["a"]

    run(tmp_path, scenario)


def test_an_engine_that_was_lost_may_come_again(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        first = await site.engine("a")
        await site.joined.get()
        first.close()
        await site.lost.get()
        await site.engine("a")
        assert await site.joined.get() == "a"

    run(tmp_path, scenario)


def test_stopping_tells_the_engines_and_closes(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        a = await site.engine("a")
        await site.joined.get()
        await site.server.stop()
        assert await a.hear() == Shutdown()

    run(tmp_path, scenario)


def test_engines_hear_that_the_server_lives(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        listening = await site.engine("a")
        await site.joined.get()
        for _ in range(3):
            assert await receive(listening.reader, TOLD) == Alive()

    run(tmp_path, scenario)


def test_what_an_engine_does_not_read_does_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.serve.device.control_server.BEAT_S", 0.0001)

    async def scenario(site: Site) -> None:
        deaf = await site.engine("a")
        await site.joined.get()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer = site.server._engines["a"]
        while not (left := writer.transport.get_write_buffer_size()):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert writer.transport.get_write_buffer_size() == left

    run(tmp_path, scenario)


def test_a_decider_that_fails_is_not_silent(tmp_path: Path) -> None:
    class Broken(NotingArbiter):
        def decide(self, now: float) -> list[tuple[str, Any]]:
            raise RuntimeError("a fault of the program")

    async def scenario(site: Site) -> None:
        with pytest.raises(RuntimeError, match="a fault of the program"):
            await site.server.watch()

    run(tmp_path, scenario, Broken())


def test_the_real_decider_grows_one_engine_by_what_another_does_not_use(tmp_path: Path) -> None:
    """`a` asks for more than its share: `b` is told to shrink first, and `a` gets more after `b`
    has done so. At no time do both hold more than the device.
    """
    tenants = [{"name": n, "model": "/m", "share": 50, "max_model_len": 48} for n in "ab"]
    memory = 60 * PAGE
    config = Config.model_validate({"device": {"memory": memory}, "tenants": tenants})

    async def scenario(site: Site) -> None:
        engines = {name: await site.engine(name) for name in ("a", "b")}
        given = {name: await engine.hear() for name, engine in engines.items()}
        assert all(isinstance(message, Allotment) for message in given.values())
        assert sum(message.grant_bytes for message in given.values()) <= memory
        for name, engine in engines.items():
            await engine.say(complying(given[name]))
        growing = given["a"].kv_extents + 5
        asking = complying(given["a"], growth_extents=growing, running=3, kv_used_extents=20)
        await engines["a"].say(asking)
        lowered = await engines["b"].hear()
        assert isinstance(lowered, Allotment) and lowered.kv_extents < given["b"].kv_extents
        await engines["b"].say(complying(lowered))
        raised = await engines["a"].hear()
        assert isinstance(raised, Allotment) and raised.kv_extents > given["a"].kv_extents
        assert raised.grant_bytes + lowered.grant_bytes <= memory

    run(tmp_path, scenario, Arbiter.of(config))


def complying(allotment: Allotment, **changes: Any) -> Report:
    """Report of an engine that holds exactly its allotment; `changes` replace fields."""
    report = Report(
        revision=allotment.revision,
        holds_turn=True,
        held_bytes=allotment.grant_bytes,
        layers_remapped=allotment.layers_remapped,
        stream_slots=allotment.stream_slots,
        kv_extents=allotment.kv_extents,
        kv_used_extents=0,
        kv_usable_extents=allotment.kv_extents,
        kv_blocks=allotment.kv_extents - 1,
        layer_load_s=0.001,
        layer_compute_s=0.001,
    )
    return msgspec.structs.replace(report, **changes)


def test_an_engine_that_says_nothing_any_more_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.serve.device.control_server.BEAT_S", 0.01)

    async def scenario() -> None:
        async with controlling(tmp_path, NotingArbiter(), hang_s=0.3) as site:
            silent, lives = await site.engine("a"), await site.engine("b")

            async def live() -> None:
                calls = 0
                while True:
                    await lives.say(Pulse(calls := calls + 1, 3))
                    await asyncio.sleep(0.01)

            living = asyncio.create_task(live())
            tenant, why = await site.hung.get()
            assert tenant == "a" and why.startswith("no sign of life for ")
            living.cancel()
            while tenant == "a":
                tenant, why = await site.hung.get()
            silent.close()

    asyncio.run(scenario())


def test_an_engine_with_requests_and_no_step_hangs_though_its_pulse_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.serve.device.control_server.BEAT_S", 0.01)

    async def scenario() -> None:
        async with controlling(tmp_path, NotingArbiter(), hang_s=0.3) as site:
            stuck = await site.engine("a")

            async def pulse() -> None:
                while True:
                    await stuck.say(Pulse(5, 2))
                    await asyncio.sleep(0.01)

            pulsing = asyncio.create_task(pulse())
            tenant, why = await site.hung.get()
            assert tenant == "a" and why.startswith("no step for ")
            assert why.endswith(" s with 2 requests")
            pulsing.cancel()

    asyncio.run(scenario())


def test_the_turn_of_one_that_hangs_passes_on_before_its_process_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine `a` hangs while it has the turn. A process that is stuck in the kernel does not die
    when it is killed, so `b` gets the turn before `a` is dead.
    """
    monkeypatch.setattr("mirage.serve.device.control_server.BEAT_S", 0.01)
    tenants = [{"name": name, "model": name, "share": 50} for name in "ab"]
    sharing = {"mode": "temporal", "turn_s": 1.0}
    told = {"device": {"memory": "64MiB"}, "tenants": tenants, "sharing": sharing}

    async def live(engine: Engine) -> None:
        for calls in count():
            await engine.say(Pulse(calls, 1))
            await asyncio.sleep(0.01)

    async def turn(engine: Engine) -> Turn:
        while not isinstance(message := await engine.hear(), Turn):
            assert message is not None
        return message

    async def scenario() -> None:
        arbiter = Arbiter.of(Config.model_validate(told))
        async with controlling(tmp_path, arbiter, hang_s=0.3, dead=False) as site:
            try:
                stuck, waits = await site.engine("a"), await site.engine("b")
                lives = [asyncio.create_task(live(engine)) for engine in (stuck, waits)]
                works = msgspec.structs.replace(REPORT, running=1, holds_turn=False)
                await stuck.say(works)
                assert await turn(stuck) == Turn(True)
                lives[0].cancel()
                await waits.say(works)
                assert await turn(waits) == Turn(True)
            finally:
                site.keepers.dead.set()

    asyncio.run(scenario())


def test_while_the_server_itself_stands_still_nobody_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of the clock passes between two ticks of the server's running time, as if the whole
    machine had been paused, and again for each tick. No engine counts as hung.
    """
    monkeypatch.setattr("mirage.serve.device.control_server.BEAT_S", 0.01)
    jumps = iter(range(1_000_000))
    monkeypatch.setattr("mirage.serve.device.control_server.LONGEST_TICK_S", 0.01)

    async def scenario() -> None:
        async with controlling(tmp_path, NotingArbiter(), hang_s=5.0) as site:
            await site.engine("a")
            await site.joined.get()
            start = site.server.running.seconds
            for _ in jumps:
                site.server.running.tick(3600.0 * next(jumps) + 1e6)
                await asyncio.sleep(0)
                if site.server.running.seconds > start + 1.0:
                    break
            assert site.hung.empty()

    asyncio.run(scenario())


def test_memory_of_a_lost_engine_is_lent_only_when_its_process_is_dead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with controlling(tmp_path, NotingArbiter(), dead=False) as site:
            engine = await site.engine("a")
            await site.joined.get()
            engine.close()
            assert await site.lost.get() == ("a", None)
            again = await site.engine("a")
            assert await again.hear() is None  # its last one still ends
            assert ("lost", "a") not in site.arbiter.events
            site.keepers.dead.set()
            while ("lost", "a") not in site.arbiter.events:
                await asyncio.sleep(0.001)
            await site.engine("a")
            assert await site.joined.get() == "a"

    asyncio.run(scenario())


def test_an_engine_says_over_what_it_ends(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        engine = await site.engine("a")
        await engine.say(CoreFailed("ValueError"))
        assert await site.failed.get() == ("a", "ValueError")

    run(tmp_path, scenario)


def test_it_listens_again_where_its_socket_was_removed(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        first = await site.engine("a")
        assert await site.joined.get() == "a"
        site.path.unlink()
        await site.server.listen(site.path)
        second = await site.engine("b")
        assert await site.joined.get() == "b"
        for engine in (first, second):
            await engine.say(REPORT)  # and who was there is heard as before
        while len(site.arbiter.events) < 4:
            site.arbiter.decided.clear()
            await site.arbiter.decided.wait()
        assert site.lost.empty()

    run(tmp_path, scenario)


@pytest.mark.parametrize("what", ["hangs", "lost"])
def test_what_cannot_be_done_to_an_engine_ends_the_watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The keeper of engines raises an error when it is called. The watch over engines ends with
    this error, instead of going on without the call: then no engine would be judged any more, or
    memory would stay booked.
    """
    monkeypatch.setattr("mirage.serve.device.control_server.BEAT_S", 0.01)

    def fail(*_: object) -> None:
        raise OSError("no more files")

    async def scenario() -> None:
        async with controlling(tmp_path, NotingArbiter(), hang_s=0.1) as site:
            monkeypatch.setattr(site.keepers, what, fail)
            engine = await site.engine("a")
            await site.joined.get()
            if what == "lost":
                engine.close()
            with pytest.raises(OSError, match="no more files"):
                await site.server.watch()

    asyncio.run(scenario())
