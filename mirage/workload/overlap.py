"""Part of a workload's prompts that a prefix cache of unlimited size would find."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from hashlib import blake2b

from mirage.workload.dealing import TenantRequest
from mirage.workload.prompts import prompt_of

MOST_CALLS = 20_000
"""Most calls of a workload whose prompts are compared, since each text has to be made."""


def repeated_tokens(calls: Collection[TenantRequest], seed: int, block_tokens: int) -> int | None:
    """Tokens at the beginning of prompts, in whole blocks, with which an earlier prompt of the same
    tenant began.

    A character counts as a token. The last token of a prompt never counts, since vLLM computes it.
    None for a workload with neither sessions nor prefix hashes, or with over `MOST_CALLS` calls.
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
