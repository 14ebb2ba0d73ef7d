"""Time of a control message between an engine and the control server, including the decision.

A child process of `mirage profile`. It runs the control server with its controller, and in another
process the engine's end of the socket, where a thread computes as torch does, with the
interpreter's lock released. The engine's running requests demand more memory than there is, and are
refused; one message takes half of the time from the demand to the answer.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from mirage import config as configuration
from mirage.config import Config
from mirage.control.arbiter import Arbiter
from mirage.engine.agent import Agent
from mirage.engine.mailbox import Mailbox
from mirage.geometry import footprint
from mirage.processes.answering import answer
from mirage.protocol import (
    PROTOCOL_VERSION,
    Allotment,
    Hello,
    ModelShape,
    Pulse,
    Refusal,
    Report,
    Turn,
)
from mirage.serve.device.control_server import ControlServer, Unkept
from mirage.serve.registry.registry import Registry, TenantServer

WARM = 50
ANSWER_S = 10.0
ANSWERS_S = 120.0
PAUSE_S = 0.005
PAGE = 65536
SHAPE = ModelShape(
    layers=12,
    layer_bytes=16 * PAGE,
    fixed_bytes=4 * PAGE,
    extent_bytes=4 * PAGE,
    extent_blocks=1,
    block_tokens=16,
    max_extents=1000,
    min_extents=4,
    movable_layers=12,
)


def measure(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of one message, one value for each question, with the configuration in the file
    `asked["config"]`.
    """
    config = configuration.load(Path(asked["config"]))
    with tempfile.TemporaryDirectory(prefix="mirage-") as folder:
        taken = asyncio.run(_serve(config, Path(folder) / "control", asked["asks"]))
    return {"message_s": taken}


async def _serve(config: Config, path: Path, asks: int) -> list[float]:
    backends = {t.name: TenantServer(t.name, path, t.max_model_len) for t in config.tenants}
    registry = Registry(config.policy, config.device.memory, backends)
    server = ControlServer(Arbiter.of(config), registry, Unkept())
    await server.start(path)
    context = multiprocessing.get_context("spawn")
    answers, there = context.Pipe(duplex=False)
    name = config.tenants[0].name
    engine = context.Process(target=_engine, args=(str(path), name, asks, there), daemon=True)
    engine.start()
    there.close()  # so that the pipe ends with the engine
    try:
        return await asyncio.to_thread(_received, answers)
    finally:
        engine.terminate()
        await asyncio.to_thread(engine.join)
        await server.stop()


def _received(answers: Connection) -> list[float]:
    if not answers.poll(ANSWERS_S):
        raise TimeoutError(f"no times for {ANSWERS_S:g} s")
    try:
        return list(answers.recv())
    except EOFError:
        raise RuntimeError("its engine ended without an answer") from None


def _engine(path: str, tenant: str, asks: int, answers: Connection) -> None:
    """Main function of the engine's process: it sends half of each question's seconds to
    `answers`.
    """
    asking = _Asking(path, tenant)
    threading.Thread(target=_compute, daemon=True).start()
    times = [asking.ask() for _ in range(WARM + asks)][WARM:]
    answers.send([seconds / 2 for seconds in times])


class _Asking:
    """An engine that holds its share, and whose running requests lack a block."""

    def __init__(self, path: str, tenant: str) -> None:
        self._heard = threading.Event()
        self._allotment: Allotment | None = None
        mailbox = Mailbox()
        mailbox.read_by(self._handle)
        self._agent = Agent(path, mailbox)
        held = footprint(SHAPE, 0, SHAPE.min_extents)
        hello = Hello(PROTOCOL_VERSION, tenant, 0, SHAPE, held)
        self._agent.start(hello, lambda: Pulse(0, 0))
        self._wait()

    def ask(self) -> float:
        """Send a demand; return the seconds until the answer."""
        pause = threading.Event()
        pause.wait(PAUSE_S)
        self._heard.clear()
        start = perf_counter()
        self._agent.send(self._report(growth=SHAPE.max_extents))
        self._wait()
        return perf_counter() - start

    def _wait(self) -> None:
        if not self._heard.wait(ANSWER_S):
            raise TimeoutError(f"no answer for {ANSWER_S} s")

    def _handle(self, message: Any) -> None:
        if isinstance(message, Allotment):
            self._allotment = message
            self._agent.send(self._report())
            self._heard.set()
        elif isinstance(message, Refusal):
            self._heard.set()
        elif isinstance(message, Turn):
            self._agent.send(self._report())

    def _report(self, growth: int = 0) -> Report:
        assert self._allotment is not None
        sent = self._allotment
        return Report(
            revision=sent.revision,
            holds_turn=True,
            held_bytes=sent.grant_bytes,
            layers_remapped=sent.layers_remapped,
            stream_slots=sent.stream_slots,
            kv_extents=sent.kv_extents,
            kv_used_extents=sent.kv_extents,
            kv_usable_extents=sent.kv_extents,
            growth_extents=sent.kv_extents + growth,
            running=1,
            layer_load_s=1e-3,
            layer_compute_s=1e-3,
        )


def _compute() -> None:
    numbers = np.random.default_rng(0).random((512, 512))
    while True:
        numbers @ numbers


if __name__ == "__main__":
    answer({"measure": measure})
