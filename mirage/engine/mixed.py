"""Names of the KV blocks of prompts with embeddings, alone or among tokens.

vLLM names such a block by its ids and embedding rows. A token has a row of zeros, and an embedding
has id 0: so a token of id 0 and an embedding of zeros get the same name, though their KV differs.
Here a name also depends on which positions are tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any


def name_by_mask(request: Any) -> None:
    """Make block names depend on the positions that are tokens; names of prompts without embeddings
    stay vLLM's.

    The mask goes into the salt of a request that is new to the scheduler; all of its names depend
    on the salt. A longer prompt keeps the names of its beginning, unless an embedding is added.
    """
    if request.prompt_embeds is None:
        return
    request.cache_salt = f"{_mark(request.prompt_is_token_ids)} {request.cache_salt or ''}"
    request.block_hashes.clear()
    request.update_block_hashes()


def _mark(tokens: Sequence[bool] | None) -> str:
    """Return a digest of the mask `tokens` up to its last embedding: one word, since a space
    separates it from the salt.

    None stands for a prompt of embeddings alone.
    """
    if tokens is None:
        return "embeddings"
    last = max((i for i, token in enumerate(tokens) if not token), default=-1)
    return hashlib.sha256(bytes(tokens[: last + 1])).hexdigest()
