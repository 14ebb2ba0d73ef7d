"""`mirage serve` with real vLLM engines, with memory of the stand-in for the GPU's driver.

Two processes share one full device: memory is released in one and created in the other, and a
killed engine's memory is free for the next. All tests use one server.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

import beside_gpu
from supervised import Served, assert_gone, serving

from mirage.config import load
from mirage.serve.launch.preflight import fit_config
from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S = 300
TENANTS = ("llama", "qwen3")
TOGETHER = 24
TOKENS = 100
ROUNDS = 5
"""Most rounds that a test tries. More than one may be needed on a machine slowed by other work:
there more layers of the busy model hide, which may be enough for a while.
"""
REMAP = {"rest_s": 0}
"""Setting without a rest: until `rest_s` has passed, an idle model gives no layer if none hides
behind the step of one request, as on a machine whose copies are slow.
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("gpu")
    config = _configured(folder)
    device = os.memfd_create("mirage-device")
    # Parameters that never move are in vLLM's own memory, which is not the stand-in's.
    loaded = load(config)
    fixed = sum(fit.fixed_bytes for fit in fit_config(loaded).values())
    environment = {
        beside_gpu.DEVICE: f"/proc/{os.getpid()}/fd/{device}",
        beside_gpu.MEMORY: str(loaded.device.memory - fixed),
    }
    with serving(
        config,
        fake=False,
        program=beside_gpu.PROGRAM,
        environment=environment,
        ready_timeout_s=START_S,
    ) as made:
        made.drain()
        yield made
    os.close(device)


def _configured(folder: Path) -> Path:
    paths = make_models(folder, which=list(TENANTS), layers=6)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 200, "max_num_seqs": 24}
        for name, path in paths.items()
    ]
    device = {"memory": "41MiB", "page": "64KiB"}
    config = folder / "config.yaml"
    config.write_text(
        yaml.safe_dump({"device": device, "dtype": "float32", "remap": REMAP, "tenants": tenants})
    )
    return config


def complete(served: Served, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body | {"ignore_eos": True})
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def samples(served: Served) -> list[dict[str, Any]]:
    history = served.timeline()
    return [sample["tenants"] for sample in history["samples"]]


@pytest.mark.parametrize("model", TENANTS)
def test_memory_is_the_drivers(served: Served, model: str) -> None:
    maps = Path(f"/proc/{served.engine_core(model).pid}/maps").read_text()
    assert "/memfd:mirage-stand-in" in maps and "libcuda.so.1" in maps
    newest = samples(served)[-1]
    held = sum(tenants["held_bytes"] for tenants in newest.values())
    assert held > 0.95 * load(served.config).device.memory, "it is full"


@pytest.mark.parametrize("busy", TENANTS)
def test_layers_of_both_become_the_busy_ones_cache_and_no_text_changes(
    served: Served, busy: str
) -> None:
    prompts = [f"{busy} {i} " + "the quick brown fox " * 2 for i in range(TOGETHER)]
    alone = [complete(served, busy, prompt) for prompt in prompts[:4]]
    (idle,) = set(TENANTS) - {busy}
    before = len(samples(served))
    for _ in range(ROUNDS):
        with ThreadPoolExecutor(TOGETHER) as pool:
            together = list(pool.map(lambda prompt: complete(served, busy, prompt), prompts))
        assert together[:4] == alone
        seen = samples(served)[before - 1 :]
        if max(tenants[idle]["layers_remapped"] for tenants in seen) > 0:
            break
    else:
        pytest.fail(f"{idle} gave no layer in {ROUNDS} rounds")
    first, most = seen[0][busy]["kv_blocks"], max(tenants[busy]["kv_blocks"] for tenants in seen)
    assert most > 2 * first
    assert seen[-1][busy]["preemptions"] == 0


def test_a_killed_engines_memory_is_there_for_the_next(served: Served) -> None:
    text = complete(served, "llama", "who is there")
    killed = served.engine_core("llama")
    killed.send_signal(signal.SIGKILL)
    served.until("it is down", lambda: served.engine_state("llama") == "down")
    served.until("it is back", lambda: served.engine_state("llama") == "ready", START_S)
    assert complete(served, "llama", "who is there") == text
    assert_gone({killed})


def test_ctrl_c_leaves_nothing(served: Served) -> None:
    family = served.family()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(60) == 130
    assert_gone(family)
