"""README's conversation: one command, and a pretrained model answers as plain vLLM does.

The model is named as at a hub, or by the folder that `make smollm` makes.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from hub_user import AS_ITSELF, ROOT, HubUser
from loopback_hub import loopback_hub
from plain_vllm import plain
from supervised import assert_gone, serving

from tests.real.models import SMOLLM, folders

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S = 600
AS_README = pytest.mark.skipif(
    torch.cpu._is_amx_tile_supported(),
    reason="two first tokens are nearly tied: in bfloat16 vLLM's attention for AMX has the other",
)
LENGTHS = {"dtype": "bfloat16", "max_model_len": 4096}
"""Settings as `mirage serve` proposes them for this model."""


class Conversation(NamedTuple):
    """A question and its answer as README prints them."""

    name: str
    body: dict[str, Any]
    answer: str


def conversation() -> Conversation:
    text = (ROOT / "README.md").read_text()
    section = text.split("## A conversation\n")[1].split("\n## ")[0]
    asked, said = re.search(r"-d '(.*?)'", section, re.S), re.search(r'answers: "(.*?)"', section)
    assert asked is not None and said is not None
    body = json.loads(asked[1])
    assert f"mirage serve {body['model']} " in section
    assert f"mirage serve out/models/{SMOLLM}`" in section
    return Conversation(body["model"], body, said[1])


def answer(server: Any, name: str) -> str:
    status, body = server.request(
        "POST", "/v1/chat/completions", conversation().body | {"model": name}
    )
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


def served(folder: Path, word: str, name: str, environment: dict[str, str]) -> str:
    """Answer of model `name` from `mirage serve WORD`. After the server's end none of its processes
    is left.
    """
    with serving(
        folder / "none.yaml",
        named=[word],
        program=AS_ITSELF,
        environment=environment,
        ready_timeout_s=START_S,
    ) as one:
        said = answer(one, name)
        family = one.family()
        assert one.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
    return said


@AS_README
def test_a_question_is_answered_by_one_line(tmp_path: Path) -> None:
    model, shown = folders()[SMOLLM], conversation()
    assert shown.body["temperature"] == 0, "greedy: the answer is always the same"
    with plain({SMOLLM: model}, **{SMOLLM: LENGTHS}) as servers:
        assert answer(servers[SMOLLM], SMOLLM) == shown.answer
    assert "Paris" in shown.answer
    with loopback_hub() as hub, TemporaryDirectory(prefix="t", dir="/tmp") as short:
        hub.add(shown.name, model)
        user = HubUser(hub, tmp_path, Path(short))
        assert served(tmp_path, shown.name, shown.name, user.environment) == shown.answer
        assert served(tmp_path, str(model), SMOLLM, user.environment) == shown.answer
