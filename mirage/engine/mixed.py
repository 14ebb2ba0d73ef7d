"""Names of the KV blocks of prompts in which embeddings stand, alone or among tokens.

vLLM names such a block by its ids and rows. A token has a row of zeros, and an embedding has id 0:
a token of id 0 and an embedding of zeros are named alike, and their KV differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any


def name_by_mask(request: Any) -> None:
    """Have the names say which positions are tokens; those of prompts of tokens stay vLLM's.

    It goes into the salt of a request that is new to the scheduler, which is a part of all of its
    names. A longer prompt keeps the names of its beginning, unless an embedding is added.
    """
    if request.prompt_embeds is None:
        return
    request.cache_salt = f"{_mark(request.prompt_is_token_ids)} {request.cache_salt or ''}"
    request.block_hashes.clear()
    request.update_block_hashes()


def _mark(tokens: Sequence[bool] | None) -> str:
    """Of a mask up to its last embedding, without a space; None is a prompt of embeddings alone."""
    if tokens is None:
        return "embeddings"
    last = max((i for i, token in enumerate(tokens) if not token), default=-1)
    return hashlib.sha256(bytes(tokens[: last + 1])).hexdigest()
