"""Hashes of KV blocks of prompts with embeddings contain which positions are tokens."""

from __future__ import annotations

from typing import Any

import pytest
import tiny  # noqa: F401  (sets vLLM's environment before it is imported)
import torch
from children import must, spawn
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from mirage.engine.mixed import name_by_mask

pytestmark = pytest.mark.engine

TOKENS, WIDTH, LENGTH = 16, 8, 80


def named(
    rows: Any, tokens: list[int] | None = None, real: list[bool] | None = None, salt: Any = None
) -> list[bytes]:
    """Hashes of a prompt's blocks as our scheduler makes them."""
    init_none_hash(sha256)
    request = Request(
        request_id="r",
        prompt_token_ids=tokens,
        prompt_embeds=rows,
        prompt_is_token_ids=real,
        sampling_params=SamplingParams(max_tokens=4),
        pooling_params=None,
        cache_salt=salt,
        block_hasher=get_request_block_hasher(TOKENS, sha256),
    )
    name_by_mask(request)
    return list(request.block_hashes)


def mask(first_row: int, rows: int = 3, length: int = LENGTH) -> list[bool]:
    """True at positions of tokens; `rows` embeddings begin at position `first_row`."""
    return [not first_row <= i < first_row + rows for i in range(length)]


ZEROS = torch.zeros(LENGTH, WIDTH)


def test_tokens_of_id_0_are_no_embeddings_of_zeros() -> None:
    pure = named(ZEROS)
    mixed = named(ZEROS, [0] * LENGTH, mask(64))
    assert len(pure) == len(mixed) == LENGTH // TOKENS
    assert not set(pure) & set(mixed)


def test_another_mask_has_another_name() -> None:
    names = [named(ZEROS, [0] * LENGTH, mask(start, rows)) for start, rows in [(0, 3), (0, 4)]]
    assert not set(names[0]) & set(names[1])


def test_the_same_prompt_and_a_longer_turn_of_it_find_its_blocks() -> None:
    first = named(ZEROS, [5] * LENGTH, mask(20))
    longer = torch.zeros(2 * LENGTH, WIDTH)
    assert named(ZEROS, [5] * LENGTH, mask(20)) == first
    assert named(longer, [5] * 2 * LENGTH, mask(20, length=2 * LENGTH))[: len(first)] == first
    assert named(ZEROS) == named(longer)[: len(first)]


def test_no_salt_of_a_client_makes_one_the_other() -> None:
    """A client's cache salt equals what our scheduler adds for the mask of another prompt. The
    blocks of both have different hashes all the same.
    """
    request: Any = Request("r", [0] * LENGTH, SamplingParams(max_tokens=1), None)
    request.prompt_embeds, request.prompt_is_token_ids = ZEROS, mask(64)
    name_by_mask(request)
    mixed = named(ZEROS, [0] * LENGTH, mask(64))
    assert request.cache_salt and not set(named(ZEROS, salt=request.cache_salt)) & set(mixed)
    assert named(ZEROS, salt="a") != named(ZEROS, salt="b")


def test_prompts_of_tokens_keep_vllms_names() -> None:
    request: Any = Request(
        "r",
        list(range(LENGTH)),
        SamplingParams(max_tokens=1),
        None,
        cache_salt="mine",
        block_hasher=get_request_block_hasher(TOKENS, sha256),
    )
    before = list(request.block_hashes)
    name_by_mask(request)
    assert (request.block_hashes, request.cache_salt) == (before, "mine")


@pytest.mark.slow
def test_an_engine_says_the_same_with_a_warm_cache(tmp_path: Any) -> None:
    """A prompt of embeddings of zeros is computed with an empty cache, and after a prompt with the
    same ids and rows at other positions. Its tokens are the same, and only its own blocks are
    found.
    """
    cold, warm, found = must(spawn("mixed_prompts.py", tmp_path)).splitlines()[-3:]
    assert warm == cold
    assert found == "[0, 64]"  # the first time nothing, then its own blocks
