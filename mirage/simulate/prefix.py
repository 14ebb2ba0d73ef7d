"""Names of KV blocks: two blocks have one name if they and all blocks before them hold equal
tokens.

Simulated requests have no texts. A trace tells what they share: prompts with equal first prefix
hashes, and requests of one session, each of which begins with all tokens of the earlier ones.
"""

from __future__ import annotations

from hashlib import blake2b

from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key
from mirage.units import ceil_div


class Prefix:
    """Content of one request's tokens. `model` identifies the weights; `own` is unique to the
    request.

    Each of `hashes` stands for the next `hash_tokens` tokens of the prompt; the tokens after the
    last are the request's own. Without hashes all of a session's tokens are one text, answers
    included.
    """

    __slots__ = ("_chain", "_hash_tokens", "_hashed", "_hashes", "_model", "_names", "_rest")

    def __init__(
        self,
        model: bytes,
        own: str,
        prompt: int,
        session: str | None = None,
        hashes: tuple[int, ...] = (),
        hash_tokens: int = 0,
    ) -> None:
        self._model = model
        shared = session is not None and not hashes
        self._rest = f"session {session}".encode() if shared else f"request {own}".encode()
        self._hashes, self._hash_tokens = hashes, hash_tokens
        self._hashed = min(len(hashes) * hash_tokens, prompt)
        self._chain: list[bytes] = []
        self._names: list[Name] = []

    @property
    def shared(self) -> bool:
        """True if other requests may begin with the same tokens."""
        return bool(self._hashes) or self._rest.startswith(b"session")

    @property
    def beginning(self) -> str:
        """Name of the first hash of the prompt, or else of its session: requests with the same name
        share a beginning. Empty without both.
        """
        if self._hashes:
            return f"prefix {self._hashes[0]}"
        return self._rest.decode() if self.shared else ""

    def names(self, blocks: int, block_tokens: int) -> list[Name]:
        """Names of the first `blocks` blocks. `block_tokens` must be the same in all calls."""
        for number in range(len(self._names), blocks):
            end = (number + 1) * block_tokens
            before = self._rest if end > self._hashed else self._link(end)
            self._names.append(Name(self._model, Key(before + number.to_bytes(4))))
        return self._names[:blocks]

    def _link(self, end: int) -> bytes:
        """Digest of all hashes up to the one that covers the token before `end`."""
        wanted = ceil_div(end, self._hash_tokens)
        for value in self._hashes[len(self._chain) : wanted]:
            before = self._chain[-1] if self._chain else b""
            self._chain.append(blake2b(before + str(value).encode(), digest_size=16).digest())
        return self._chain[wanted - 1]
