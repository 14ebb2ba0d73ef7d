"""A seeded request gives the same text however its prompt is split over steps, and
ends no engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import must, spawn
from tiny import make_model

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WHOLE, SPLIT = 2048, 48
"""Tokens per step: all six prompts at once, or each prompt in two to four parts."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_model("llama", folder)
    return folder


def texts(folder: Path, tokens_per_step: int, *how: str) -> dict[str, list[int]]:
    out = folder / "tokens.json"
    must(spawn("split_prompts.py", folder, out, tokens_per_step, *how))
    return dict(json.loads(out.read_text()))


def test_split_prompts_give_the_texts_of_plain_vllm_with_whole_ones(folder: Path) -> None:
    assert texts(folder, SPLIT) == texts(folder, WHOLE, "plain")
