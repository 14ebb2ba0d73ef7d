"""The text of a call's prompt: made when it is sent, with the same tokens where calls share some.

A character is a token for a byte-level tokenizer. The text for a prefix hash depends on the hash
and the seed alone, so prompts with the same first hashes begin with the same text. The prompts of a
session are beginnings of one text, so each turn begins with all prompts before it; in place of the
model's answers that text has other characters of the same length. Scaling and cutting change the
length of these texts, never their characters.
"""

from __future__ import annotations

import random

from mirage.workload.dealing import PRINTABLE, TenantRequest, prompt


def prompt_of(call: TenantRequest, seed: int) -> str:
    """The prompt's text: `call.context_tokens` printable ASCII characters."""
    pieces, begin = [], 0
    for number, known in enumerate(call.prefix_hashes, start=1):
        end = min(round(number * call.hash_tokens), call.context_tokens)
        pieces.append(_beginning(f"hash {seed} {known}", end - begin))
        begin = end
        if end == call.context_tokens:
            break
    rest = call.context_tokens - begin
    if call.session is None:
        own = prompt(seed, call.index, rest)
    else:
        own = _beginning(f"session {seed} {call.session}", rest)
    return "".join(pieces) + own


def _beginning(of: str, length: int) -> str:
    """The first `length` characters of an endless text drawn from the seed `of`."""
    whole_words = -length % 4  # `randbytes` cuts its last word of four bytes at the wrong end
    drawn = random.Random(of).randbytes(length + whole_words)[:length]
    return drawn.translate(PRINTABLE).decode("ascii")
