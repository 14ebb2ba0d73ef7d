"""A router for several devices: the replica that a request goes to, and when it goes to another
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from attending import nobody
from routed import no_overview, no_resize

from mirage.config import HANG_S, HttpSection, Policy
from mirage.control.roster.states import LifeState
from mirage.protocol import ModelShape, Report
from mirage.serve.access.forms import NO_KEYS, AccessKey, AccessTable
from mirage.serve.access.ring import digest
from mirage.serve.ends.ending import Ending
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.routed.messages import RouterWelcome
from mirage.serve.router.app import Router
from mirage.serve.router.link import SupervisorLink
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.routing.inner import InnerServer

pytestmark = pytest.mark.e2e
LEFT, RIGHT = "left", "right"
ROUTE = "/v1/completions"
WAIT_S = 60
SHAPE = ModelShape(8, 4096, 100, 8192, 2, 16, 9, 3, 8)


@dataclass
class Replica:
    """The fake engine of model `m` on one device."""

    device: str
    backend: TenantServer
    desk: RouterDesk
    registry: Registry
    seen: list[str] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer as the prompt says.

        ``wait`` waits for `go_on`, ``die`` breaks the connection once the request was read,
        ``full`` is 503, ``slow`` takes 40 ms, and ``stream`` breaks off after an event. With a
        device's name behind it, the prompt holds on that device alone.
        """
        prompt = (await request.json())["prompt"]
        self.seen.append(prompt)
        self.begun.set()
        what, _, where = prompt.partition(" ")
        if where not in ("", self.device):
            what = ""
        if what == "wait":
            await self.go_on.wait()
        if what == "full":
            return web.json_response({"device": self.device}, status=503)
        if what == "slow":
            await asyncio.sleep(0.04)
        if what == "stream":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"data: {}\n\n")
        if what in ("die", "stream"):
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"device": self.device})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text="# HELP vllm:seen Requests\n# TYPE vllm:seen gauge\nvllm:seen 1\n")

    @contextlib.asynccontextmanager
    async def listens(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post(ROUTE, self.answer)
        app.router.add_get("/metrics", self.metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(self.backend.socket)).start()
        try:
            yield
        finally:
            self.go_on.set()
            await runner.cleanup()


@dataclass
class Site:
    """A router for two replicas of model `m`, on the devices left and right."""

    http: aiohttp.ClientSession
    router: Router
    left: Replica
    right: Replica

    async def ask(
        self, prompt: str, at: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer to a request: at the address `at` of a replica, or at the
        server's.
        """
        body = {"model": "m", "prompt": prompt}
        async with self.http.post(at + ROUTE, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def breaks(self, prompt: str, ending: Ending) -> tuple[int, dict[str, Any]]:
        """Send a request, let the left engine end in the given way as soon as it has the request,
        and return status and answer.
        """
        asked = asyncio.create_task(self.ask(prompt))
        await asyncio.wait_for(self.left.begun.wait(), WAIT_S)
        await self.left.desk.ended("m", ending)
        return await asyncio.wait_for(asked, WAIT_S)


@contextlib.asynccontextmanager
async def welcoming(
    folder: Path,
    name: str,
    backends: dict[str, TenantServer],
    devices: dict[str, str],
    access: AccessTable = NO_KEYS,
) -> AsyncIterator[tuple[RouterDesk, Registry]]:
    """Run the supervisor's side of the line `name` while the block runs, for a device with these
    tenants.
    """
    registry = Registry(Policy.MIRAGE, 1 << 30, backends)
    desk = RouterDesk(registry, nobody(), HANG_S)
    told, inner = HttpSection().model_dump(), folder / f"{name}.inner"
    welcome = RouterWelcome(told, "127.0.0.1", 1, HANG_S, str(inner), {}, 9.0, devices)
    await desk.start(folder / name, welcome, access)
    server = InnerServer(registry, desk, no_resize, no_overview)
    await server.start(inner)
    keeping = asyncio.create_task(desk.keep())
    try:
        yield desk, registry
    finally:
        keeping.cancel()
        await server.stop()
        desk.close()


@contextlib.asynccontextmanager
async def site(
    folder: Path, *listening: str, served: bool = True, access: AccessTable = NO_KEYS
) -> AsyncIterator[Site]:
    """Run a `Site` while the block runs. The engines on the devices `listening` answer; without
    `served`, only the first device has a server.
    """
    lines = {name: str(folder / name) for name in (LEFT, RIGHT)}
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(welcoming(folder, "machine", {}, lines, access))
        replicas = []
        for name in lines if served else [LEFT]:
            backend = TenantServer("m", folder / f"{name}.engine", 256, LifeState.READY)
            backend.missed = False
            welcome = welcoming(folder, name, {"m": backend}, {})
            replicas.append(Replica(name, backend, *await stack.enter_async_context(welcome)))
            if name in listening:
                await stack.enter_async_context(replicas[-1].listens())
        link = SupervisorLink(folder / "machine")
        await link.connect()
        router = Router(link)
        work = [link.keep(router), router.tenants.keep()]
        tasks = [asyncio.create_task(one) for one in work]
        for one in replicas:
            await asyncio.wait_for(one.desk.connected(), WAIT_S)
        listens = socket.create_server(("127.0.0.1", 0))
        await router.start([listens])
        url = f"http://127.0.0.1:{listens.getsockname()[1]}"
        http = await stack.enter_async_context(aiohttp.ClientSession(url))
        try:
            yield Site(http, router, replicas[0], replicas[-1])
        finally:
            await router.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def in_a_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Decorator for a test that is a coroutine: it runs in an event loop of its own."""

    @wraps(test)
    def runs(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return runs


def by(status_and_body: tuple[int, dict[str, Any]]) -> str:
    status, body = status_and_body
    assert status == 200, body
    return str(body["device"])


@in_a_loop
async def test_an_engine_that_is_away_leaves_its_requests_to_the_other(tmp_path: Path) -> None:
    async with site(tmp_path, RIGHT) as one:
        assert [by(await one.ask(f"{n}")) for n in range(3)] == [RIGHT] * 3
        assert one.right.seen == ["0", "1", "2"]


@in_a_loop
async def test_a_request_that_was_read_is_not_sent_again(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        status, told = await one.ask("die")
        assert status == 502, told
        assert (one.left.seen, one.right.seen) == (["die"], [])


@in_a_loop
async def test_it_goes_where_the_least_is_in_flight(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        waiting = asyncio.create_task(one.ask("wait"))
        await asyncio.wait_for(one.left.begun.wait(), WAIT_S)
        assert by(await one.ask("x")) == RIGHT
        one.left.go_on.set()
        assert by(await waiting) == LEFT
        assert by(await one.ask("y")) == LEFT


@in_a_loop
async def test_one_that_has_failed_is_the_last_to_be_asked(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        one.left.backend.fail("it is broken")
        await one.left.desk.seen()
        assert by(await one.ask("x")) == RIGHT
        async with one.http.get("/health/m") as answer:
            assert answer.status == 200, "a replica serves"
        one.right.backend.fail("it is broken")
        await one.right.desk.seen()
        status, told = await one.ask("x")
        assert status == 503 and "it is broken" in told["error"]["message"]
        async with one.http.get("/health") as answer:
            assert answer.status == 503


@in_a_loop
async def test_a_model_whose_devices_end_is_away_and_not_unknown(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        lines = one.router.tenants.several
        lines[LEFT].drains = True
        assert by(await one.ask("x")) == RIGHT
        lines[RIGHT].drains = True
        status, told = await one.ask("y")
        assert (status, told["error"]["code"]) == (503, "device_away"), told
        async with one.http.post(ROUTE, json={"model": "other", "prompt": "z"}) as answer:
            assert answer.status == 404, "no device has it"


KILLED, FAULT = Ending(status=-9), Ending(status=-11)


@in_a_loop
async def test_what_had_no_byte_is_sent_again_where_the_engine_ended_from_outside(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        assert by(await one.breaks("die left", KILLED)) == RIGHT
        assert (one.left.seen, one.right.seen) == (["die left"], ["die left"])
        async with one.http.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        counted = 'mirage_requests_rerouted_total{cause="ended_from_outside",tenant="m"} 1.0'
        assert counted in lines
        assert 'mirage_replica_in_flight{device="left",tenant="m"} 0.0' in lines
        assert 'mirage_replica_rate{device="right",tenant="m"} 0.0' in lines


async def read_on(answer: aiohttp.ClientResponse) -> str:
    """Rest of an answer's text until it ends or breaks off."""
    text = ""
    with contextlib.suppress(aiohttp.ClientPayloadError):
        async for line in answer.content:
            text += line.decode()
    return text


@in_a_loop
async def test_what_had_a_byte_is_not_sent_again(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        body = {"model": "m", "prompt": "stream left", "stream": True}
        async with one.http.post(ROUTE, json=body) as answer:
            reading = asyncio.create_task(read_on(answer))  # later, its end may have come
            await one.left.desk.ended("m", KILLED)
            text = await reading
        assert "was ended from outside (SIGKILL): send this request again" in text
        assert (one.left.seen, one.right.seen) == (["stream left"], [])


@in_a_loop
async def test_what_ended_an_engine_is_refused_on_both(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        status, told = await one.breaks("die left", FAULT)
        assert status == 502 and told["error"]["code"] == "request_ended_engine"
        for at in ("", f"/replicas/{LEFT}/m", f"/replicas/{RIGHT}/m"):
            status, told = await one.ask("die left", at)
            assert status == 422 and told["error"]["code"] == "request_ended_engine"
        assert by(await one.ask("y")) == LEFT
        assert one.right.seen == []


@in_a_loop
async def test_what_memory_ran_out_with_is_not_sent_again(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        status, told = await one.breaks("die left", Ending(status=-9, oom_kills=1))
        assert status == 502 and "OOM killer" in told["error"]["message"]
        assert one.right.seen == []


@in_a_loop
async def test_until_an_end_is_judged_its_requests_go_nowhere(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        first = asyncio.create_task(one.ask("die left"))
        async with asyncio.timeout(WAIT_S):
            while not one.router.tenants.routes.quarantine._unjudged:
                await asyncio.sleep(0.01)
        status, told = await one.ask("die left")
        assert status == 503 and "try again later" in told["error"]["message"], told
        assert by(await one.ask("x")) == RIGHT, "others go on"
        await one.left.desk.ended("m", KILLED)
        assert by(await first) == RIGHT


@in_a_loop
async def test_an_engine_without_a_place_leaves_its_requests_to_the_other(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        assert by(await one.ask("full left")) == RIGHT
        status, told = await one.ask("full")
        assert status == 503 and told == {"device": RIGHT}, "the last one's own answer"
        assert one.left.seen == ["full left", "full"] and one.right.seen == one.left.seen


@in_a_loop
async def test_a_session_stays_where_it_is(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        sessions = [{"X-Session-ID": f"s{n}"} for n in range(12)]
        places = [by(await one.ask("x", headers=each)) for each in sessions]
        assert set(places) == {LEFT, RIGHT}
        for _ in range(3):
            assert [by(await one.ask("y", headers=each)) for each in sessions] == places
        waiting = asyncio.create_task(one.ask("wait right"))
        beside = asyncio.create_task(one.ask("wait right", headers=sessions[places.index(RIGHT)]))
        await asyncio.wait_for(one.right.begun.wait(), WAIT_S)
        assert [by(await one.ask("y", headers=each)) for each in sessions[:1]] == places[:1]
        one.right.go_on.set()
        await asyncio.gather(waiting, beside)


@in_a_loop
async def test_a_session_goes_on_elsewhere_where_its_replica_has_its_part(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        session = {"X-Session-ID": "s"}
        home = by(await one.ask("x", headers=session))
        asked = [asyncio.create_task(one.ask("wait", headers=session)) for _ in range(8)]
        both = one.left.seen, one.right.seen
        async with asyncio.timeout(WAIT_S):
            while sum(seen.count("wait") for seen in both) < 8:
                await asyncio.sleep(0.01)
        counts = {one.left.device: one.left.seen.count("wait")}
        counts[RIGHT] = one.right.seen.count("wait")
        assert counts[home] == 5, counts  # 1.25 of 8 by 2
        for replica in (one.left, one.right):
            replica.go_on.set()
        await asyncio.gather(*asked)


@in_a_loop
async def test_who_answers_faster_has_more(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:

        async def client(requests: int) -> None:
            for _ in range(requests):
                by(await one.ask("slow left"))

        await asyncio.gather(*(client(50) for _ in range(6)))
        left, right = len(one.left.seen), len(one.right.seen)
        assert left + right == 300 and right > 2 * left > 0, (left, right)


# -- addresses of replicas --------------------------------------------------------------


@in_a_loop
async def test_each_replica_has_an_address_of_its_own(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        for device in (LEFT, RIGHT):
            at = f"/replicas/{device}/m"
            assert by(await one.ask("x", at)) == device
            async with one.http.get(f"{at}/health") as answer:
                assert (answer.status, await answer.read()) == (200, b"")
            async with one.http.get(f"{at}/v1/models") as answer:
                (card,) = (await answer.json())["data"]
                assert (card["id"], card["devices"]) == ("m", [device])
            async with one.http.get(f"{at}/metrics") as answer:
                lines = (await answer.text()).splitlines()
                assert f'vllm:seen{{model_name="m",device="{device}"}} 1' in lines
                assert not [line for line in lines if line.startswith("mirage_")]
        for path in ("/mirage/state", "/ready", "/replicas/left/m/health", "/nothing"):
            async with one.http.get(f"/replicas/{LEFT}/m{path}") as answer:
                assert answer.status == 404 and (await answer.json())["error"], path
        async with one.http.get(f"/replicas/{LEFT}/m/version") as answer:
            assert (await answer.json())["error"]["code"] == "route_not_served"
        for path in ("/replicas", "/replicas/", "/replicas/left", "/replicas/left/m"):
            async with one.http.get(path) as answer:
                assert answer.status == 404


@in_a_loop
async def test_at_the_address_of_a_replica_no_other_one_answers(tmp_path: Path) -> None:
    async with site(tmp_path, RIGHT) as one:
        status, told = await one.ask("x", f"/replicas/{LEFT}/m")
        assert status == 502 and one.right.seen == [], told
        one.left.backend.fail("it is broken")
        await one.left.desk.seen()
        status, told = await one.ask("x", f"/replicas/{LEFT}/m")
        assert status == 503 and "it is broken" in told["error"]["message"]
        async with one.http.get(f"/replicas/{LEFT}/m/health") as answer:
            assert answer.status == 503
        async with one.http.get(f"/replicas/{LEFT}/m/metrics") as answer:
            assert answer.status == 503
        async with one.http.get("/replicas/nowhere/m/health") as answer:
            assert answer.status == 503
        status, told = await one.ask("x", "/replicas/nowhere/m")
        assert status == 503 and told["error"]["code"] == "replica_away"
        status, told = await one.ask("x", f"/replicas/{LEFT}/other")
        assert status == 404 and told["error"]["code"] == "model_not_found"


@in_a_loop
async def test_keys_are_those_of_the_server(tmp_path: Path) -> None:
    key, other, watcher = (
        AccessKey("user", digest("user"), models=("m",)),
        AccessKey("other", digest("other"), models=("x",)),
        AccessKey("watcher", digest("watcher"), metrics=True),
    )
    at = f"/replicas/{LEFT}/m"
    async with site(tmp_path, LEFT, RIGHT, access=AccessTable((key, other, watcher))) as one:
        assert (await one.ask("x", at))[0] == 401
        headers = {name: {"Authorization": f"Bearer {name}"} for name in ("user", "other")}
        assert by(await one.ask("x", at, headers["user"])) == LEFT
        assert (await one.ask("x", at, headers["other"]))[0] == 404
        (right,) = (tenant for tenant in one.router.tenants if tenant.device == RIGHT)
        right.strikes.remember({}, {"user": time.monotonic() + 60})
        status, told = await one.ask("x", at, headers["user"])
        assert status == 422 and told["error"]["code"] == "key_ended_engines"
        async with one.http.get(f"{at}/v1/models", headers=headers["other"]) as answer:
            assert (await answer.json())["data"] == []
        async with one.http.get(f"{at}/metrics", headers=headers["user"]) as answer:
            assert answer.status == 403
        async with one.http.get(f"{at}/metrics", headers={"x-api-key": "watcher"}) as answer:
            assert answer.status == 200
        async with one.http.get(f"{at}/health") as answer:
            assert answer.status == 200, "as of vLLM, it asks for none"
        async with one.http.get("/health") as answer:
            assert answer.status == 401


@in_a_loop
async def test_a_device_that_has_told_nothing_yet_may_have_the_model(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, served=False) as one:
        assert by(await one.ask("x")) == LEFT
        body = {"model": "other", "prompt": "x"}
        async with one.http.post(ROUTE, json=body) as answer:
            told = await answer.json()
            assert answer.status == 503 and told["error"]["code"] == "device_away"
            assert answer.headers["Retry-After"]
        async with one.http.get("/health") as answer:
            health = await answer.json()
            assert health["status"] == "degraded" and health["devices"][RIGHT]["status"] == "down"


@in_a_loop
async def test_what_is_told_of_devices_has_their_names(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        async with one.http.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        for device in ("", LEFT, RIGHT):
            assert f'mirage_supervisor_up{{device="{device}"}} 1.0' in lines
        assert 'mirage_tenant_up{device="left",tenant="m"} 1.0' in lines
        assert 'mirage_tenant_up{device="right",tenant="m"} 1.0' in lines
        assert not [line for line in lines if line.startswith("mirage_tenant_up{tenant=")]
        for device in (LEFT, RIGHT):
            assert f'vllm:seen{{model_name="m",device="{device}"}} 1' in lines
            age = f'mirage_engine_metrics_age_seconds{{device="{device}",tenant="m"}} '
            assert [line for line in lines if line.startswith(age)]
        async with one.http.get("/mirage/overview") as answer:
            told = await answer.json()
            assert answer.status == 400 and "left, right" in told["error"]["message"]
        async with one.http.get("/mirage/overview", params={"device": LEFT}) as answer:
            assert answer.status == 200 and await answer.json() == {}


@in_a_loop
async def test_lists_have_a_model_once(tmp_path: Path) -> None:
    async with site(tmp_path, LEFT, RIGHT) as one:
        for desk in (one.left, one.right):
            desk.registry.shapes["m"] = SHAPE
            desk.registry.reports["m"] = Report(1, True, 77, 3, 2, 4, 1)
        async with one.http.get("/api/ps") as answer:
            (model,) = (await answer.json())["models"]
        assert (model["name"], model["size_vram"]) == ("m", 2 * 77)
        async with one.http.get("/api/tags") as answer:
            assert len((await answer.json())["models"]) == 1


@in_a_loop
async def test_a_device_whose_server_has_told_nothing_is_waited_for_by_nobody(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, LEFT, served=False) as one:
        async with one.http.get("/metrics") as answer:
            assert 'mirage_supervisor_up{device="right"} 0.0' in await answer.text()
        async with one.http.get("/mirage/overview", params={"device": RIGHT}) as answer:
            assert answer.status == 503
