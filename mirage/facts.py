"""Properties of one model that vLLM reports before weights are loaded: its layers, and its KV
cache.

`mirage.engine.probe` asks for them, `mirage.serve.fit.fit` computes sizes from them, an engine's
scheduler counts blocks by them. Sizes are bytes of device memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from mirage.units import ceil_div


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table: vLLM allots each request blocks for each group.

    A block of any group takes the same bytes, and all blocks come from one pool.
    """

    kind: str
    """vLLM's name of the layers' state: ``full_attention``, ``sliding_window``, ``mamba``…"""
    layers: int
    block_tokens: int
    most_blocks: int
    """Most blocks that one request of `max_model_len` tokens holds at the same time."""
    grows: bool = True
    """True if a request's blocks grow with its length; False if it holds `most_blocks` from the
    start.
    """

    def blocks(self, tokens: int) -> int:
        """KV blocks of this group for a request that is `tokens` long, at most `most_blocks`."""
        if not self.grows:
            return self.most_blocks
        blocks = -(-tokens // self.block_tokens)
        return blocks if blocks < self.most_blocks else self.most_blocks


class KVGroups(msgspec.Struct, frozen=True):
    """All groups of one model. Most models have one; a model without a KV cache has none."""

    groups: tuple[KVGroup, ...] = ()

    @property
    def request_blocks(self) -> int:
        """KV blocks of a request of the greatest length, over all groups."""
        return sum(group.most_blocks for group in self.groups)

    def blocks(self, tokens: int) -> int:
        """KV blocks of a request that is `tokens` long, over all groups."""
        return sum(group.blocks(tokens) for group in self.groups)

    def to_start(self, tokens: Iterable[int], slots: int) -> int:
        """KV blocks needed to start the first `slots` waiting requests, whose lengths are `tokens`;
        each computes one token more.
        """
        return sum(self.blocks(each + 1) for each in islice(tokens, max(0, slots)))

    def grown(self, tokens: int, parts: int = 1) -> int:
        """KV blocks that running requests take for `tokens` / `parts` more tokens.

        A sliding window takes new blocks as it frees old ones, so it counts here.
        """
        growing = [group for group in self.groups if group.grows]
        return sum([ceil_div(tokens, parts * group.block_tokens) for group in growing])


NO_KV = KVGroups()


class ExpertFacts(msgspec.Struct, frozen=True):
    """Experts of a mixture-of-experts model and their sizes."""

    layers: int
    """Layers that have experts."""
    count: int
    """Experts in each of these layers."""
    slices: tuple[int, ...]
    """Bytes of one expert in each tensor that holds a part of it."""

    def stay(self, page_bytes: int) -> str | None:
        """Reason why no expert can be given away with pages of `page_bytes`; None if experts can
        be.
        """
        odd = next((nbytes for nbytes in self.slices if nbytes % page_bytes), None)
        if odd is None:
            return None
        return f"{odd} bytes of an expert are not whole pages of {page_bytes} bytes"


class ModelFacts(msgspec.Struct, frozen=True):
    """One tenant's model as its engine will build it."""

    architecture: str
    """Name in ``config.json`` of the class that vLLM builds."""
    quantisation: str
    """vLLM's name of the weights' format; empty if they are not quantised."""
    runner: str
    """``generate``, or ``pooling`` for models that answer with vectors or scores."""
    layers: int
    layer_bytes: int
    """Parameter bytes of the largest decoder layer."""
    fixed_bytes: int
    """Bytes of parameters and buffers outside the decoder layers, including a draft model's."""
    stays: str | None
    """Reason why the layers cannot move; None if they can."""
    block_bytes: int
    """Bytes of one KV block, over all layers of its group; 0 if the model has no KV cache."""
    block_runs: int
    """Contiguous runs of memory that a KV block consists of: 1, or one for each layer."""
    kv: KVGroups
    vllm: str
    """Version of the vLLM that reported these facts."""
    experts: ExpertFacts | None = None
    """Experts that could be given away; None if there are none."""
    experts_stay: str | None = None
    """Reason why no expert can be given away; None if experts can be."""
