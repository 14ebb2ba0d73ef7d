"""One line, and a pretrained model of a hub answers a question, as plain vLLM answers it."""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hub_user import AS_ITSELF, HubUser
from loopback_hub import loopback_hub
from plain_vllm import plain
from supervised import assert_gone, serving

from tests.real.models import SMOLLM, folders

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
START_S = 600
QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 24,
    "temperature": 0,
}


def answer(server: Any) -> str:
    status, body = server.request("POST", "/v1/chat/completions", {"model": NAME, **QUESTION})
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


def test_a_question_is_answered_by_one_line(tmp_path: Path) -> None:
    model = folders()[SMOLLM]
    with plain({NAME: model}, **{NAME: {"dtype": "bfloat16", "max_model_len": 4096}}) as servers:
        expected = answer(servers[NAME])
    assert "Paris" in expected
    with loopback_hub() as hub, TemporaryDirectory(prefix="t", dir="/tmp") as short:
        hub.add(NAME, model)
        user = HubUser(hub, tmp_path, Path(short))
        with serving(
            tmp_path / "none.yaml",
            named=[NAME],
            program=AS_ITSELF,
            environment=user.environment,
            ready_timeout_s=START_S,
        ) as served:
            assert answer(served) == expected
            family = served.family()
            assert served.end(signal.SIGTERM)[0] == 0
        assert_gone(family)
