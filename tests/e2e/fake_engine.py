"""A stand-in for one vLLM server, as strict as it is small.

Takes the command line of `mirage.serve.launch.launcher.command`. Like vLLM it is two processes: a
server on the Unix socket, and a core that speaks the control protocol. The prompt of a
completion says what to do (see `complete`). The variable ``FAKE_ENGINE`` says how all engines of a
test behave; NAME is a tenant:

- ``deaf`` engines ignore SIGTERM. ``slow`` ones take two seconds to start, and say so.
- ``dies:NAME``: NAME fails while it starts; ``dies:all``: each one does. ``only:NAME``: NAME does,
  and the others' starts never end. ``once:FILE``: the first start makes FILE, and every later one
  fails. ``after:NAME:FILE``: NAME's starts fail until FILE exists. ``waits:NAME:FILE``: NAME's
  start waits until FILE exists.
- ``mute``: engines never connect to the control server. ``greedy``: they report that they hold more
  than the device has.
- ``obeys``: engines do as allotments say; ``obeys:NAME:FILE``: NAME's start also waits for FILE.
- ``borrows:NAME``: all obey, and one request of NAME wants all the memory it can get.
  ``lends:NAME``: eight requests of NAME do, and each engine counts steps that waited when an
  allotment takes layers of it (`count_steps`).
- ``raises:NAME``, ``crashes:NAME``, ``stands:NAME``, ``late:NAME``: NAME's first step ends by an
  exception or a signal, stands still, or never ends; with ``:FILE`` behind it only while FILE
  exists. ``refuses:NAME``: NAME's server ends with an error during the first step.

Where ``VLLM_ALLOW_RUNTIME_LORA_UPDATING`` is 1 it loads adapters, unless their files say ``bad``.
``FAKE_ERROR`` is the message of an engine that fails while it starts. ``FAKE_MEMORY`` has the free
bytes of the device and all its bytes, which the core reports after its first step.
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
"""Seconds for which it tries to connect to the successor of a control server that was killed."""
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
    fails = (kind == "dies" and detail in (name, "all")) or (kind == "only" and detail == name)
    if kind == "only" and not fails:
        signal.pause()
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
    """Start the core as a fork of this process, so that a test can start many fake
    engines quickly.
    """
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
    """Connect to the control server, send one report, and take its messages until it ends. With a
    lease, go on with its successor.

    SIGUSR1 makes its thread stuck in a step while signs of life go on. SIGUSR2 ends it by an
    exception. After SIGWINCH it steps on and obeys no more. SIGURG makes it use up all memory.
    """
    kind = os.environ.get("FAKE_ENGINE")
    if kind == "mute":
        signal.pause()
    held = HELD * 1000 if kind == "greedy" else HELD
    hello = Hello(PROTOCOL_VERSION, str(mirage["tenant"]), os.getpid(), SHAPE, held)
    while hello is not None:
        hello = converse(mirage, hello, kind)


def converse(mirage: dict[str, object], hello: Hello, kind: str | None) -> Hello | None:
    """Exchange messages with one control server until it ends. Return the hello for its successor,
    or None if the engine must end because it has no lease.
    """
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
    """Try for `limit_s` seconds to connect to the socket `path`; False if no
    process listens there.
    """
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
    """Compute the first step, which may fail as FAKE_ENGINE in the environment says.

    A step that fails does so after the first message of the control server: an engine has no
    memory for a step before.
    """
    how, name, file = [*os.environ.get("FAKE_ENGINE", "").split(":"), "", ""][:3]
    if name != tenant or how not in FIRST_STEPS or not Path(file).exists():
        free_and_all = map(int, os.environ.get("FAKE_MEMORY", "0 0").split())
        control.sendall(encode(Stepped(*free_and_all)))
        return
    control.recv(1, socket.MSG_PEEK)
    if how == "raises":
        print("(EngineCore pid=7) RuntimeError: expected BFloat16", file=sys.stderr, flush=True)
        control.sendall(encode(CoreFailed("RuntimeError")))
        os._exit(1)
    elif how == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "stands":
        stuck.set()


def pulse(control: socket.socket, stuck: threading.Event) -> None:
    """Send signs of life: those of an engine that steps without requests, or of one that is stuck
    in a step.
    """
    calls = 0
    while True:
        requests = int(stuck.is_set())
        calls += 1 - requests
        try:
            control.sendall(encode(Pulse(calls, requests)))
        except OSError:  # that server has gone
            return
        time.sleep(BEAT_S)


def eat() -> None:
    """Allocate memory without end, until the kernel kills this process."""
    eaten = []
    while True:
        eaten.append(bytearray(1 << 20))


def fail(control: socket.socket, error: str = "ZeroDivisionError", fault: str = "") -> None:
    """End as vLLM's core does after an error: tell the control server the error, and exit."""
    control.sendall(encode(CoreFailed(error, fault)))
    os._exit(1)


def report_of(told: Allotment, *, wants_all: bool) -> Report:
    """Report of an engine that holds exactly its allotment; with `wants_all` it wants all memory
    that it can get.
    """
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
    """Count 100 steps of 4 sequences each, 0.8 ms of waiting in each step, and 3 requests that
    began. If the engine has all its layers, none of these is counted.
    """
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
    """Answer `/health`. If the core has ended, this server ends too, as vLLM's does."""
    if child.poll() is not None:
        os._exit(1)
    return web.Response()


async def models(name: str, adapters: dict[str, str]) -> web.Response:
    cards = [{"id": adapter, "root": folder} for adapter, folder in adapters.items()]
    return web.json_response({"data": [{"id": name, "root": "/model"}, *cards]})


async def load(request: web.Request, adapters: dict[str, str]) -> web.Response:
    """Load an adapter. It takes half a second if the adapter's file says ``slow``, and fails if it
    says ``bad``.
    """
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
    """Answer a completion as its prompt says.

    ``pids`` tells the ids of both processes. ``hang`` never answers after a first event, ``silent``
    not at all. ``die``, ``raise``, ``illegal address``, ``ecc``, ``kill`` and ``eat`` end the
    engine: by a fault, an exception, an error of the GPU (two kinds), a signal from outside, or a
    lack of memory. ``wait`` answers after half a second, ``tokens`` immediately, with a usage of
    `max_tokens`. ``fail`` is answered with an error, and the engine lives. ``drip`` is a stream of
    `max_tokens` events, ten a second.
    """
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
