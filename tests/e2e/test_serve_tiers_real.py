"""Real engines of `mirage serve` find in the host pool what they, or equal engines, stored."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from supervised import Served, serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT, BLOCK = 200, 32


def say(served: Served, model: str, prompt: str) -> str:
    ask = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", ask)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def loaded(served: Served, tenant: str) -> int:
    """Number of tokens that a tenant's engine has loaded from tiers instead of computing them."""
    samples = served.timeline()["samples"]
    return int(samples[-1]["tenants"][tenant]["tokens_loaded"])


def configured(tmp_path: Path, tiers: dict[str, Any]) -> Path:
    """Configuration of two tenants of equal weights, on a device that holds few of
    their KV blocks.
    """
    folder = make_models(tmp_path / "models", which=("llama",))["llama"]
    tenants = [
        {"name": name, "model": str(folder), "share": 50, "max_model_len": 256, "max_num_seqs": 2}
        for name in ("a", "b")
    ]
    content = {
        "device": {"memory": "70MiB", "page": "64KiB"},
        "dtype": "float32",
        "block_tokens": BLOCK,
        "tenants": tenants,
        "tiers": tiers,
    }
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    return config


def drawn(count: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices("abcdefgh ", k=PROMPT)) for _ in range(count)]


def test_prompts_that_left_the_device_are_found(tmp_path: Path) -> None:
    config = configured(tmp_path, {"host": {"bytes": "256MiB"}})
    prompts = drawn(60)
    with serving(config, fake=False, ready_timeout_s=200) as served:
        first = [say(served, "a", prompt) for prompt in prompts]
        again = [say(served, "a", prompt) for prompt in prompts]
        assert again == first
        served.until("a loaded", lambda: loaded(served, "a") > 0)
        # The same weights under another name: what a stored is b's as well.
        assert [say(served, "b", prompt) for prompt in prompts[:20]] == first[:20]
        served.until("b loaded", lambda: loaded(served, "b") > 0)


def test_after_a_restart_in_order_nothing_of_host_memory_is_forgotten(tmp_path: Path) -> None:
    disk = {"directory": str(tmp_path / "ssd"), "bytes": "512MiB", "keep": True}
    config = configured(tmp_path, {"host": {"bytes": "256MiB"}, "ssd": disk})
    prompts = drawn(60)
    with serving(config, fake=False, ready_timeout_s=200) as served:
        first = [say(served, "a", prompt) for prompt in prompts]
        state = served.request("GET", "/mirage/state")[1]
        held, deep = state["host_pool"]["blocks"], state["ssd"]["blocks"]
        assert held > deep  # the pool has room for all: little was copied down beforehand
        code, log = served.end(signal.SIGTERM)
        assert code == 0 and "KV blocks of host memory are written" in log
    with serving(config, fake=False, ready_timeout_s=200) as served:
        assert served.request("GET", "/mirage/state")[1]["ssd"]["found"] >= held
        assert [say(served, "b", prompt) for prompt in prompts[:20]] == first[:20]
        served.until("b loaded", lambda: loaded(served, "b") > 0)


@pytest.mark.rare
def test_peers_are_revoked_and_an_engine_killed_while_it_reads_from_them(tmp_path: Path) -> None:
    lend = 4 << 20
    peer = {"devices": {"near": lend, "far": lend}, "link_gb_s": 2}
    config = configured(tmp_path, {"host": {"bytes": "16MiB"}, "peer": peer})
    rng, prompts = random.Random(2), drawn(60)

    def revoke(device: str, nbytes: int) -> dict[str, Any]:
        status, answer = served.request("POST", "/mirage/tiers", {"peer": {device: nbytes}})
        assert status == 200, answer
        return dict(answer["host_pool"]["peers"])

    with serving(config, fake=False, ready_timeout_s=200) as served:
        first = [say(served, "a", prompt) for prompt in prompts]
        for number in range(4 * len(prompts)):
            if rng.random() < 0.1:
                revoke(rng.choice(("near", "far")), rng.choice((0, lend // 2, lend)))
            choice = rng.randrange(len(prompts))
            assert say(served, "b" if number % 3 == 0 else "a", prompts[choice]) == first[choice]
        revoke("near", lend)
        revoke("far", lend)
        for choice in range(20):  # what is on peers when the engine goes
            assert say(served, "a", prompts[choice]) == first[choice]
        state = served.request("GET", "/mirage/state")[1]["host_pool"]["peers"]
        assert state["revocations"] > 0
        assert state["held"]["tenants"]["a"]["counts"]["loaded_bytes"] > 0
        assert state["held"]["used_bytes"] > 0

        before = served.request("GET", "/mirage/state")[1]["engines"]["a"]["restarts"]
        served.engine_core("a").kill()
        revoke("near", 0)
        revoke("far", 0)

        def back() -> bool:
            engine = served.request("GET", "/mirage/state")[1]["engines"]["a"]
            return bool(engine["restarts"] > before and engine["state"] == "ready")

        served.until("the engine is back", back)
        served.until("nothing is lent", lambda: lent(served) == [0, 0])
        revoke("near", lend)
        assert [say(served, "a", prompt) for prompt in prompts] == first


def lent(served: Served) -> list[int]:
    devices = served.request("GET", "/mirage/state")[1]["host_pool"]["peers"]["devices"]
    return [device["held_bytes"] for device in devices.values()]
