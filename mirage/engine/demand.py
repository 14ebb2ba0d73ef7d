"""How much more KV memory an engine wants, in blocks: pure arithmetic over its queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True)
class Demand:
    """Blocks wanted beyond those an engine has."""

    growth: int = 0
    admission: int = 0


def blocks_for(tokens: int, block_tokens: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)


def demand(
    *,
    running: int,
    waiting_tokens: Iterable[int],
    free_blocks: int,
    missing_blocks: int,
    headroom_blocks: int,
    block_tokens: int,
    free_slots: int,
    lookahead_steps: int,
) -> Demand:
    """The wishes of one moment.

    `missing_blocks` is what the last failed allocation of a running request lacked beyond
    `free_blocks`; `waiting_tokens` are the prompt lengths of waiting requests in order, of
    which at most `free_slots` can start. Growth is asked ahead for `lookahead_steps` decode
    steps, so that memory arrives before it is needed.
    """
    ahead = 0
    if running:
        ahead = blocks_for(running * lookahead_steps, block_tokens) + headroom_blocks
    if missing_blocks:
        growth, spare = missing_blocks + ahead, 0
    else:
        growth, spare = max(0, ahead - free_blocks), max(0, free_blocks - ahead)
    starting = islice(waiting_tokens, max(0, free_slots))
    wanted = sum(blocks_for(tokens + 1, block_tokens) for tokens in starting)
    return Demand(growth, max(0, wanted - spare))
