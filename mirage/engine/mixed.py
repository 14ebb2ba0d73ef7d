"""Names of the KV blocks of prompts in which embeddings stand, alone or among tokens.

vLLM names such a block by its ids and rows. A token has a row of zeros, and an embedding has id 0:
a token of id 0 and an embedding of zeros are named alike, and their KV differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any


def name_by_mask(request: Any) -> None:
    """Let block names tell which positions are tokens; those of prompts of tokens stay vLLM's.

    The mask goes into the salt of a request that is new to the scheduler; all of its names depend
    on the salt. A longer prompt keeps the names of its beginning, unless an embedding is added.
    """
    if request.prompt_embeds is None:
        return
    request.cache_salt = f"{_mark(request.prompt_is_token_ids)} {request.cache_salt or ''}"
    request.block_hashes.clear()
    request.update_block_hashes()


def _mark(tokens: Sequence[bool] | None) -> str:
    """Digest of a mask up to its last embedding: one word, as the salt is behind a space.

    None stands for a prompt of embeddings alone.
    """
    if tokens is None:
        return "embeddings"
    last = max((i for i, token in enumerate(tokens) if not token), default=-1)
    return hashlib.sha256(bytes(tokens[: last + 1])).hexdigest()
