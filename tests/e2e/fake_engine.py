"""A stand-in for one vLLM server, as strict as it is small.

Takes the command line of `mirage.serve.launcher.command`. Like vLLM it is two processes: a
server on the Unix socket, and a core that speaks the control protocol. The prompt of a
completion says what to do (see `complete`). Run with ``FAKE_ENGINE`` in the environment set
to ``deaf`` it ignores SIGTERM, to ``dies:NAME`` tenant NAME fails while it starts, to
``greedy`` it holds more than the device has, to ``mute`` it never comes to the control server,
to ``waits:NAME:FILE`` tenant NAME goes on with its start once FILE exists,
to ``once:FILE`` every start after the one that makes FILE fails, to ``after:NAME:FILE`` tenant
NAME starts only once FILE exists, to ``obeys`` all do as they are told, and to
``obeys:NAME:FILE`` NAME waits for FILE as well. To ``borrows:NAME`` all obey, and a request of
tenant NAME wants all the memory it can get; to ``lends:NAME`` eight of them do, and for each
allotment that takes layers of another one it counts steps that waited (`count_steps`). ``slow``
takes two seconds to start, and says so.
Where ``VLLM_ALLOW_RUNTIME_LORA_UPDATING`` is 1 it loads adapters, unless their files say ``bad``.
Of tenant NAME the first step raises (``raises:NAME``, or ``raises:NAME:FILE`` while FILE exists),
``crashes``, ``stands`` still or is ``late`` without end; or its server ``refuses`` meanwhile.
``FAKE_ERROR`` is what one that fails while it starts says; ``FAKE_MEMORY`` has the bytes of the
device that are free, and all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

from aiohttp import web
from msgspec import structs

from mirage.processes.child import AdoptedChild
from mirage.protocol import (
    BEAT_S,
    PROTOCOL_VERSION,
    Allotment,
    CoreFailed,
    EngineHoldings,
    EngineLease,
    Hello,
    ModelShape,
    Pulse,
    Report,
    Shutdown,
    Stepped,
    ToEngine,
)
from mirage.wire import Channel, encode

LAYERS = int(os.environ.get("FAKE_LAYERS", "2"))
SHAPE = ModelShape(LAYERS, 65536, 65536, 65536, 1, 16, 40, 8, LAYERS)
HELD = 65536 * 20
EXTENTS = 19 - LAYERS
ENDS = {
    "die": signal.SIGSEGV,
    "raise": signal.SIGUSR2,
    "kill": signal.SIGKILL,
    "eat": signal.SIGURG,
    "illegal address": signal.SIGTTIN,
    "ecc": signal.SIGTTOU,
}
GPU = {
    signal.SIGTTIN: "CUDA_ERROR_ILLEGAL_ADDRESS",
    signal.SIGTTOU: "CUDA_ERROR_ECC_UNCORRECTABLE",
}

LEASE_S = 600.0
"""Seconds that it knocks at the socket of a server that was killed."""
FIRST_STEPS = ("raises", "crashes", "stands", "late", "refuses")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", type=Path)
    parser.add_argument("--served-model-name")
    parser.add_argument("--additional-config", type=json.loads)
    options, _ = parser.parse_known_args()
    mirage = options.additional_config["mirage"]
    misbehave(options.served_model_name)
    child = begin_core(mirage)
    asyncio.run(serve(options.uds, options.served_model_name, child))


def misbehave(name: str) -> None:
    kind, _, detail = os.environ.get("FAKE_ENGINE", "").partition(":")
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fails = kind == "dies" and detail in (name, "all")
    if kind == "slow":
        print("(EngineCore pid=7) INFO 01-01 00:00:00 [core.py:1] Loading weights:   0% |", end="")
        print("\rLoading weights:  50% |", flush=True)
        time.sleep(2)
    if kind == "after":
        absent, _, file = detail.partition(":")
        fails = absent == name and not Path(file).exists()
    if kind in ("waits", "obeys"):
        waiting, _, file = detail.partition(":")
        while waiting == name and not Path(file).exists():
            time.sleep(0.02)
    if kind == "once":
        fails = Path(detail).exists()
        Path(detail).touch()
    if fails:
        print("(EngineCore pid=7) ERROR 01-01 00:00:00 [core.py:1] Traceback:", file=sys.stderr)
        error = os.environ.get("FAKE_ERROR", "ValueError: the moon is too near")
        print(f"(EngineCore pid=7) {error}", file=sys.stderr)
        print("RuntimeError: Engine core initialization failed. See above.", file=sys.stderr)
        sys.exit(3)


def begin_core(mirage: dict[str, object]) -> AdoptedChild:
    """A fork, which has the imports: a test starts many engines."""
    if child := os.fork():
        return AdoptedChild(child)
    code = 1
    try:
        core(mirage)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def core(mirage: dict[str, object]) -> None:
    """Hello, one report, then listen until the server goes away.

    Sent SIGUSR1, its thread is stuck in a step and its pulse goes on; sent SIGUSR2, it ends over an
    exception; sent SIGWINCH, it obeys no more and steps on; sent SIGURG, it wants all memory.
    """
    kind = os.environ.get("FAKE_ENGINE")
    if kind == "mute":
        signal.pause()
    held = HELD * 1000 if kind == "greedy" else HELD
    hello = Hello(PROTOCOL_VERSION, str(mirage["tenant"]), os.getpid(), SHAPE, held)
    while hello is not None:
        hello = converse(mirage, hello, kind)


def converse(mirage: dict[str, object], hello: Hello, kind: str | None) -> Hello | None:
    """Serve one server to its end; hello for the next one, None without a lease."""
    newest = hello.holdings and hello.holdings.allotment
    lease_s = LEASE_S if newest else 0.0  # a server that dies may have let it in
    gone = contextlib.suppress(BrokenPipeError, ConnectionResetError)
    with gone, socket.socket(socket.AF_UNIX) as control:
        if not connects(control, str(mirage["control"]), LEASE_S if newest else 0.0):
            return None
        control.sendall(encode(hello))
        extents = {"kv_usable_extents": EXTENTS, "kv_blocks": EXTENTS - 1}
        report = Report(0, True, HELD, 0, 2, EXTENTS, 0, **extents)
        if newest is None:
            control.sendall(encode(report))
        stuck, stubborn = threading.Event(), threading.Event()
        step(control, str(mirage["tenant"]), stuck)
        signal.signal(signal.SIGWINCH, lambda number, frame: stubborn.set())
        signal.signal(signal.SIGUSR1, lambda number, frame: stuck.set())
        signal.signal(signal.SIGURG, lambda number, frame: eat())
        signal.signal(signal.SIGUSR2, lambda number, frame: fail(control))
        for number, fault in GPU.items():
            signal.signal(number, lambda *_, fault=fault: fail(control, "AcceleratorError", fault))
        threading.Thread(target=pulse, args=(control, stuck), daemon=True).start()
        borrows, _, borrower = (kind or "").partition(":")
        channel: Channel[ToEngine] = Channel(control, ToEngine)
        for message in channel.until_end():
            if isinstance(message, Shutdown):
                return None
            if isinstance(message, EngineLease):
                lease_s = message.seconds
            obeys = borrows in ("borrows", "lends", "obeys") and not stubborn.is_set()
            if isinstance(message, Allotment) and obeys:
                wants_all = borrows != "obeys" and mirage["tenant"] == borrower
                before, newest = report, message
                report = report_of(message, wants_all=wants_all)
                if borrows == "lends":
                    count_steps(before, report)
                with contextlib.suppress(OSError):  # that server has gone
                    control.sendall(encode(report))
    if newest is None or not lease_s:
        return None
    report = report_of(newest, wants_all=False)
    again = EngineHoldings(newest, report)
    return structs.replace(hello, held_bytes=report.held_bytes, holdings=again)


def connects(control: socket.socket, path: str, limit_s: float) -> bool:
    """False if nobody listens there for so long."""
    until = time.monotonic() + limit_s
    while True:
        try:
            control.connect(path)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
        time.sleep(0.1)


def step(control: socket.socket, tenant: str, stuck: threading.Event) -> None:
    """A first step, that may fail."""
    how, name, file = [*os.environ.get("FAKE_ENGINE", "").split(":"), "", ""][:3]
    if name != tenant or how not in FIRST_STEPS or not Path(file).exists():
        free_and_all = map(int, os.environ.get("FAKE_MEMORY", "0 0").split())
        control.sendall(encode(Stepped(*free_and_all)))
    elif how == "raises":
        print("(EngineCore pid=7) RuntimeError: expected BFloat16", file=sys.stderr, flush=True)
        control.sendall(encode(CoreFailed("RuntimeError")))
        os._exit(1)
    elif how == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "stands":
        stuck.set()


def pulse(control: socket.socket, stuck: threading.Event) -> None:
    """Signs of life, of an engine that steps on without a request, or of one that is stuck."""
    passes = 0
    while True:
        requests = int(stuck.is_set())
        passes += 1 - requests
        try:
            control.sendall(encode(Pulse(passes, requests)))
        except OSError:  # that server has gone
            return
        time.sleep(BEAT_S)


def eat() -> None:
    """Take memory until the kernel ends it."""
    eaten = []
    while True:
        eaten.append(bytearray(1 << 20))


def fail(control: socket.socket, error: str = "ZeroDivisionError", fault: str = "") -> None:
    """End as vLLM's core does: first its last words, then its process."""
    control.sendall(encode(CoreFailed(error, fault)))
    os._exit(1)


def report_of(told: Allotment, *, wants_all: bool) -> Report:
    """Of an engine that holds what it was told to."""
    extents = told.kv_extents
    report = Report(
        told.revision, True, told.grant_bytes, told.layers_remapped, told.stream_slots, extents, 0
    )
    report.kv_usable_extents, report.asleep = extents, told.asleep
    report.step_s, report.token_s = 0.01, 0.0001
    if wants_all:
        report.kv_used_extents, report.running = extents, 1
        report.growth_extents = SHAPE.max_extents
    return report


def count_steps(before: Report, report: Report) -> None:
    """With layers away: 100 steps of 4 sequences, each 0.8 ms longer, of 3 requests that began."""
    report.kv_used_blocks = max(0, report.kv_used_extents - 1)
    report.running *= 8
    more = int(report.layers_remapped > 0)
    report.steps, report.tokens = before.steps + 100 * more, before.tokens + 400 * more
    report.started, report.stall_s = before.started + 3 * more, before.stall_s + 0.08 * more


async def serve(uds: Path, name: str, child: AdoptedChild) -> None:
    # Named in /dev/shm as long as this process lives, as vLLM's are; also after the session.
    if session := os.environ.get("MIRAGE_TEST_SESSION"):
        multiprocessing.current_process()._config["semprefix"] = f"/mp-{session}"  # type: ignore[attr-defined]
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    if os.environ.get("FAKE_ENGINE") == f"refuses:{name}":
        await asyncio.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        child.wait()
        print("ValueError: no such chat template", file=sys.stderr)
        os._exit(2)
    app = web.Application(client_max_size=0)
    app.router.add_get("/health", lambda request: health(child))
    adapters: dict[str, str] = {}
    app.router.add_post("/v1/completions", lambda request: complete(request, name, child, adapters))
    app.router.add_get("/v1/models", lambda request: models(name, adapters))
    if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1":
        app.router.add_post("/v1/load_lora_adapter", lambda request: load(request, adapters))
        app.router.add_post("/v1/unload_lora_adapter", lambda request: unload(request, adapters))
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(uds)).start()
    asked_to_end = asyncio.Event()
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_end.set)
    await asked_to_end.wait()
    child.send_signal(signal.SIGKILL)
    del semaphore


async def health(child: AdoptedChild) -> web.Response:
    """Ends with its core, as vLLM's server does."""
    if child.poll() is not None:
        os._exit(1)
    return web.Response()


async def models(name: str, adapters: dict[str, str]) -> web.Response:
    cards = [{"id": adapter, "root": folder} for adapter, folder in adapters.items()]
    return web.json_response({"data": [{"id": name, "root": "/model"}, *cards]})


async def load(request: web.Request, adapters: dict[str, str]) -> web.Response:
    """A ``slow`` adapter takes half a second."""
    body = await request.json()
    adapter, folder = body["lora_name"], body["lora_path"]
    text = (Path(folder) / "adapter_config.json").read_text()
    if "slow" in text:
        await asyncio.sleep(0.5)
    if "bad" in text or adapter in adapters:
        return web.json_response({"error": {"message": "it is bad"}}, status=500)
    adapters[adapter] = folder
    return web.Response(text="Success")


async def unload(request: web.Request, adapters: dict[str, str]) -> web.Response:
    if adapters.pop((await request.json())["lora_name"], None) is None:
        return web.json_response({"error": {"message": "there is none"}}, status=404)
    return web.Response(text="Success")


async def complete(
    request: web.Request,
    name: str,
    child: AdoptedChild,
    adapters: dict[str, str],
) -> web.StreamResponse:
    """Prompts: ``pids`` tells the two processes' ids, ``hang`` never answers after a first event,
    ``silent`` without one, ``die`` ends the engine by a fault, ``raise`` by an exception, ``illegal
    address`` and ``ecc`` by one of the GPU, ``kill`` from outside, ``eat`` takes all the memory
    there is, ``wait`` answers in half a second,
    ``tokens`` at once as if it had computed `max_tokens`, ``fail`` fails and the engine lives.
    ``drip`` is a whole stream of `max_tokens` events, ten a second."""
    body = await request.json()
    if (model := body["model"]) not in (name, *adapters):
        return web.json_response({"error": {"message": f"no {model} here"}}, status=404)
    adapted = {"model": model, "adapter": adapters[model]} if model in adapters else {}
    prompt = body.get("prompt")
    if prompt == "hang":
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        await asyncio.Event().wait()
    if prompt == "drip":
        return await drip(request, body["max_tokens"])
    if prompt == "silent":
        await asyncio.Event().wait()
    if (number := ENDS.get(str(prompt))) is not None:
        child.send_signal(number)
        await asyncio.Event().wait()
    if prompt == "fail":
        return web.json_response({"error": {"message": "no"}}, status=500)
    if prompt == "wait":
        await asyncio.sleep(0.5)
    if prompt == "tokens":
        usage = {"prompt_tokens": 100, "completion_tokens": body["max_tokens"]}
        return web.json_response({"server": os.getpid(), "usage": usage})
    return web.json_response({"server": os.getpid(), "core": child.pid} | adapted)


async def drip(request: web.Request, events: int) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(events):
        await response.write(b"data: {}\n\n")
        await asyncio.sleep(0.1)
    await response.write(b"data: [DONE]\n\n")
    return response


if __name__ == "__main__":
    main()
