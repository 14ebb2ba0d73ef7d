"""Pretrained models, bit for bit: 24 chats of each in plain vLLM and while memory moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn

from tests.real.models import GEMMA, SMOLLM
from tests.zoo.judging import first_difference, numbers

pytestmark = pytest.mark.engine

RARE, SLOW = pytest.mark.rare, pytest.mark.slow


def told(folder: Path, mode: str, name: str, dtype: str) -> dict[str, Any]:
    out = folder / f"{mode}.json"
    must(spawn("real_run.py", out, mode, name, dtype))
    facts: dict[str, Any] = json.loads(out.read_text())
    return facts


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(SMOLLM, "float32", marks=SLOW),
        pytest.param(SMOLLM, "bfloat16", marks=RARE),
        pytest.param(GEMMA, "float32", marks=RARE),
        pytest.param(GEMMA, "bfloat16", marks=RARE),
    ],
)
def test_tokens_and_logprobs_are_plain_vllms(tmp_path: Path, name: str, dtype: str) -> None:
    plain, ours = (told(tmp_path, mode, name, dtype) for mode in ("plain", "mirage"))
    assert numbers(plain["rounds"]) and plain["prompts"] == 30
    assert first_difference(plain["rounds"], ours["rounds"]) is None
    assert ours["hits"] == plain["hits"] > 0
    assert len(ours["remapped_counts"]) >= 10 and {1, 2} <= set(ours["slot_counts"])
    assert ours["bytes_streamed"] > 0 and min(ours["grown"], ours["shrunk"]) >= 10
    counts = ours["remapped_counts"]
    moves = f"{ours['changes']} changes, {counts[0]} to {counts[-1]} layers remapped"
    print(f"{name} {dtype}: {ours['prompts']} prompts equal, {moves}")


@RARE
def test_without_waits_they_differ(tmp_path: Path) -> None:
    plain, ours = (told(tmp_path, mode, SMOLLM, "float32") for mode in ("plain", "nowait"))
    assert first_difference(plain["rounds"], ours["rounds"]) is not None
