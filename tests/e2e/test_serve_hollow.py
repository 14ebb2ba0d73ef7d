"""An engine starts while another's requests use its share, so its layers are streamed at first."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from supervised import Served, serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S = 600
TOKENS = 600
STREAMS = 12
"""Number of requests at a time: they need more memory than the device has, so some always use lent
memory.
"""


def complete(served: Served, model: str, tokens: int) -> str:
    body = {"model": model, "prompt": "a number", "max_tokens": tokens, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body | {"ignore_eos": True})
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def state(served: Served, name: str) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["tenants"][name])


def test_it_serves_before_others_have_given_its_share_back(tmp_path: Path) -> None:
    paths = make_models(tmp_path, which=["llama", "qwen3"], layers=8)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": TOKENS + 100}
        for name, path in paths.items()
    ]
    config = tmp_path / "config.yaml"
    content = {"device": {"memory": "60MiB"}, "dtype": "float32", "tenants": tenants}
    config.write_text(yaml.safe_dump(content))
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        served.patience_s = START_S
        alone, other = complete(served, "llama", 20), complete(served, "qwen3", TOKENS)
        with ThreadPoolExecutor(STREAMS) as pool:
            stop = threading.Event()

            def busy() -> list[str]:
                texts = []
                while not stop.is_set():
                    texts.append(complete(served, "qwen3", TOKENS))
                return texts

            running = [pool.submit(busy) for _ in range(STREAMS)]
            served.until("it has borrowed", lambda: state(served, "llama")["layers_remapped"] >= 2)
            served.engine_core("llama").send_signal(signal.SIGKILL)
            served.until("it is noticed", lambda: served.engine_state("llama") != "ready")
            again = complete(served, "llama", 20)
            stop.set()
            texts = [text for one in running for text in one.result()]
        assert again == alone
        assert texts and set(texts) == {other}
        started = [line for line in served.log if "llama: starting with" in line]
        assert len(started) == 1, [line for line in served.log if "llama" in line]
