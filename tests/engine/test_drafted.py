"""Greedy requests with drafted tokens stay greedy beside sampled requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny  # noqa: F401  (sets vLLM's environment before it is imported)
import torch
from children import must, spawn
from vllm.v1.sample import rejection_sampler

from mirage.engine.drafted import repeat_settings

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_requests_setting_is_repeated_for_its_tokens(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", None)
    repeat_settings()
    settings = torch.tensor([3, 0, 7], dtype=dtype)
    counts = torch.tensor([2, 3, 6], dtype=torch.int32)
    repeated = rejection_sampler.expand_batch_to_tokens(settings, counts, 6, 0, 1)
    assert repeated.dtype == dtype
    assert repeated.tolist() == [3, 3, 1, 7, 7, 7]


def test_greedy_requests_get_the_most_likely_tokens_beside_sampled_ones(tmp_path: Path) -> None:
    out = tmp_path / "facts.json"
    must(spawn("drafting.py", tmp_path, out))
    facts = json.loads(out.read_text())
    assert facts["tokens"] == 128 and facts["unlikely"] == 0
    assert facts["sampled"] > 0
    # The first token of an answer comes with its prompt.
    assert facts["answered"] == [sum(facts["answers"]) - len(facts["answers"]), 8]
