"""Models without turns: one that wakes gets its layers back while others' requests still run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml
from supervised import Served, serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S = 300
LINK_GB_S = 0.06
"""Speed of the link in GB/s, at which a layer loads in about fifty milliseconds: none hides behind
the decode of one request.
"""
PROMPTS = [f"{word} number {i}" for i in range(8) for word in ("a", "the")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("recall")
    paths = make_models(folder, which=["llama", "qwen3"], layers=6)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 200, "max_num_seqs": 16}
        for name, path in paths.items()
    ]
    content = {
        "device": {"memory": "41MiB", "link_gb_s": LINK_GB_S},
        "dtype": "float32",
        "tenants": tenants,
        "remap": {"rest_s": 1},
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


def complete(served: Served, model: str, prompt: str, tokens: int) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body | {"ignore_eos": True})
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def state(served: Served, name: str) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["tenants"][name])


def test_running_requests_make_room_for_a_woken_model(served: Served) -> None:
    alone = [complete(served, "llama", prompt, 150) for prompt in PROMPTS[:2]]
    woken = complete(served, "qwen3", "wake", 20)
    with ThreadPoolExecutor(len(PROMPTS) + 1) as pool:
        burst = [pool.submit(complete, served, "llama", prompt, 150) for prompt in PROMPTS]
        served.until("layers are lent", lambda: state(served, "qwen3")["layers_remapped"] >= 2)
        before = state(served, "llama")["preemptions"]
        waking = pool.submit(complete, served, "qwen3", "wake", 20)
        assert waking.result() == woken
        assert [request.result() for request in burst[:2]] == alone
    # By the server's own samples: to ask on a busy machine takes longer than the burst may.
    seen = [s["tenants"] for s in served.timeline()["samples"]]
    lent = next(i for i, tenants in enumerate(seen) if tenants["qwen3"]["layers_remapped"] >= 2)
    assert any(
        tenants["qwen3"]["layers_remapped"] == 0
        and tenants["llama"]["running"] > 0
        and tenants["llama"]["preemptions"] > before
        for tenants in seen[lent:]
    ), "its layers were back while the burst ran, since requests of that were preempted"
