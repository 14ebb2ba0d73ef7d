"""Part of a workload's prompts that an unbounded prefix cache would find."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from hashlib import blake2b

from mirage.workload.dealing import TenantRequest
from mirage.workload.prompts import prompt_of

MOST_CALLS = 20_000
"""Most calls of a workload whose prompts are compared: their texts have to be made for it."""


def repeated_tokens(calls: Collection[TenantRequest], seed: int, block_tokens: int) -> int | None:
    """Tokens in whole blocks at the beginning of prompts that began earlier ones of their tenant.

    A character counts as a token. Of a prompt at least one token is left, as vLLM computes one.
    None for a workload that shares nothing by itself, or is too long to look at.
    """
    if len(calls) > MOST_CALLS or not any(call.session or call.prefix_hashes for call in calls):
        return None
    seen: defaultdict[str, set[bytes]] = defaultdict(set)
    found = 0
    for call in calls:
        blocks = _chained(prompt_of(call, seed), block_tokens)
        known, most = seen[call.tenant], (call.context_tokens - 1) // block_tokens
        missing = (number for number, block in enumerate(blocks) if block not in known)
        found += min(next(missing, len(blocks)), most)
        known.update(blocks)
    return found * block_tokens


def _chained(text: str, block_tokens: int) -> list[bytes]:
    """Digest of the text up to the end of each whole block."""
    digest, found = blake2b(digest_size=16), []
    for end in range(block_tokens, len(text) + 1, block_tokens):
        digest.update(text[end - block_tokens : end].encode())
        found.append(digest.digest())
    return found
