"""Real vLLM engines whose KV blocks go to another GPU's memory, with the driver's stand-in.

The peer takes its memory back, or its holder is killed or frozen, while engines read from it. No
text changes, and no engine ends.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

import beside_gpu
from supervised import Served, serving
from test_serve_tiers_real import configured, drawn, lent, say

from mirage.config import load
from mirage.serve.launch.preflight import fit_config

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

START_S = 600
LEND = 4 << 20


def peers(served: Served) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["host_pool"]["peers"])


def revoke(served: Served, nbytes: int) -> None:
    status, answer = served.request("POST", "/mirage/tiers", {"peer": {"gpu1": nbytes}})
    assert status == 200, answer


def holder(served: Served) -> psutil.Process:
    living = (c for c in psutil.Process(served.process.pid).children() if c.status() != "zombie")
    (found,) = [child for child in living if "tests.vmm.libcuda.lending" in child.cmdline()]
    return found


def zombies(served: Served) -> list[psutil.Process]:
    children = psutil.Process(served.process.pid).children()
    return [child for child in children if child.status() == psutil.STATUS_ZOMBIE]


def restarts(served: Served) -> list[int]:
    engines = served.request("GET", "/mirage/state")[1]["engines"]
    return [engine["restarts"] for engine in engines.values()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_blocks_lie_on_another_gpu_until_it_wants_them_back_or_is_lost(
    tmp_path: Path, number: int
) -> None:
    tiers = {"host": {"bytes": "16MiB"}, "peer": {"devices": {"gpu1": LEND}}}
    config = configured(tmp_path, tiers)
    loaded, device = load(config), os.memfd_create("mirage-device")
    fixed = sum(fit.fixed_bytes for fit in fit_config(loaded).values())
    environment = {
        beside_gpu.DEVICE: f"/proc/{os.getpid()}/fd/{device}",
        beside_gpu.MEMORY: str(loaded.device.memory - fixed),
    }
    rng, prompts = random.Random(3), drawn(40)
    program = beside_gpu.LENDING + beside_gpu.PROGRAM
    with serving(
        config,
        fake=False,
        program=program,
        environment=environment,
        ready_timeout_s=START_S,
    ) as served:
        served.drain()
        first = [say(served, "a", prompt) for prompt in prompts]
        assert 0 < lent(served)[0] <= LEND

        def ask(count: int) -> None:
            for number in range(count):
                choice = rng.randrange(len(prompts))
                model = "b" if number % 3 == 0 else "a"
                assert say(served, model, prompts[choice]) == first[choice]

        for _ in range(3):
            ask(20)
            revoke(served, rng.choice((0, LEND // 2)))
            ask(10)
            revoke(served, LEND)
        state = peers(served)
        assert state["revocations"] > 0
        assert sum(t["counts"]["loaded_bytes"] for t in state["held"]["tenants"].values()) > 0
        maps = Path(f"/proc/{served.engine_core('a').pid}/maps").read_text()
        assert "/memfd:mirage-stand-in-1" in maps, "the engine copies from its own addresses"

        holder(served).send_signal(number)
        ask(40)
        served.until("it is lost", lambda: peers(served)["devices"]["gpu1"]["budget_bytes"] == 0)
        served.until("nothing is lent", lambda: lent(served) == [0])
        served.until("no zombie is left of it", lambda: not zombies(served))
        ask(20)
        assert restarts(served) == [0, 0]
        for model in ("a", "b"):
            maps = Path(f"/proc/{served.engine_core(model).pid}/maps").read_text()
            assert "/memfd:mirage-stand-in-1" not in maps, "let go of"
    os.close(device)
