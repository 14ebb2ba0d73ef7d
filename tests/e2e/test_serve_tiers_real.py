"""Real engines above the host pool of `mirage serve` find what they and their likes stored."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from supervised import Served, serving

from mirage.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT, BLOCK = 200, 32


def say(served: Served, model: str, prompt: str) -> str:
    ask = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", ask)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def loaded(served: Served, tenant: str) -> int:
    """Tokens that it loaded instead of computing them."""
    samples = served.request("GET", "/mirage/timeline")[1]["samples"]
    return int(samples[-1]["tenants"][tenant]["tokens_loaded"])


def test_prompts_that_left_the_device_are_found(tmp_path: Path) -> None:
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
        "tiers": {"host": {"bytes": "256MiB"}},
    }
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    rng = random.Random(1)
    prompts = ["".join(rng.choices("abcdefgh ", k=PROMPT)) for _ in range(60)]
    with serving(config, fake=False, ready_timeout_s=200) as served:
        first = [say(served, "a", prompt) for prompt in prompts]
        again = [say(served, "a", prompt) for prompt in prompts]
        assert again == first
        served.until("a loaded", lambda: loaded(served, "a") > 0)
        # The same weights under another name: what a stored is b's as well.
        assert [say(served, "b", prompt) for prompt in prompts[:20]] == first[:20]
        served.until("b loaded", lambda: loaded(served, "b") > 0)
