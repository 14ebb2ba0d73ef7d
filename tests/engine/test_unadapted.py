"""Requests for a model itself, in steps with requests for its adapters, give the model's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.zoo import FAMILIES, companions, driving, make_all

pytestmark = [pytest.mark.engine, pytest.mark.slow]

EVERY = 1 + len(companions.ADAPTERS)
"""Distance between consecutive prompts without an adapter; the prompts between have one each."""


def test_no_adapter_is_no_adapter_beside_others_while_memory_moves(tmp_path: Path) -> None:
    make_all((FAMILIES["llama"], FAMILIES["llama-lora"]), tmp_path)
    (_, alone), *_ = driving.drive("plain", ["llama"], tmp_path)
    (_, beside), *_ = driving.drive("mirage", ["llama-lora"], tmp_path)
    assert len(beside["remapped_counts"]) > 3 and beside["bytes_streamed"]
    for plain, ours in zip(
        map(tokens, alone["rounds"]), map(tokens, beside["rounds"]), strict=True
    ):
        assert ours[::EVERY] == plain[::EVERY]
        assert ours[1] != plain[1] and ours[2] != plain[2], "the adapters do something"


def tokens(outputs: list[Any]) -> list[list[int]]:
    """Tokens of each output, without logprobs. Adapters share no prefixes, so batches differ, and
    some kernels round by the batch.
    """
    return [output[0] for output in outputs]
