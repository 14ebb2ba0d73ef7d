"""Ranks of tokens are those that vLLM counts, and nothing is compiled for them."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

import torch
from torch._dynamo.utils import counters
from vllm.v1.sample import sampler
from vllm.v1.sample.ops.logprobs import batched_count_greater_than

from mirage.engine import ranks

pytestmark = pytest.mark.engine

ODD = (float("-inf"), float("inf"), float("nan"), 0.0, -0.0)


@pytest.mark.parametrize("part", [1, 40, 1 << 22])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_they_are_what_vllm_counts(rows: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PART", part)
    values = torch.randn(rows, 17, generator=torch.Generator().manual_seed(rows))
    values[:, : len(ODD)] = torch.tensor(ODD)
    plain = batched_count_greater_than._torchdynamo_orig_callable
    for column in range(17):
        least = values[:, column : column + 1]
        assert torch.equal(ranks.counted(values, least), plain(values, least))


def test_log_probabilities_are_gathered_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "batched_count_greater_than", batched_count_greater_than)
    ranks.count_uncompiled()
    before = dict(counters["frames"])
    logprobs = torch.randn(3, 50).log_softmax(-1)
    found = sampler.Sampler.gather_logprobs(logprobs, 2, torch.tensor([1, 2, 3]))
    assert found.selected_token_ranks.shape == (3,)
    assert dict(counters["frames"]) == before
