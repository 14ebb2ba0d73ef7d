"""How much more KV memory an engine wants, in blocks: pure arithmetic over its queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

ASKED = 4
"""Growth is asked for in bulk: see `demand`."""


@dataclass(frozen=True)
class Demand:
    """Blocks wanted beyond those an engine has."""

    growth: int = 0
    admission: int = 0


def blocks_for(tokens: int, block_tokens: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)


def blocks_to_start(tokens: Iterable[int], slots: int, block_tokens: int) -> int:
    """KV blocks with which the first `slots` waiting requests, of so many tokens, can start."""
    return sum(blocks_for(each + 1, block_tokens) for each in islice(tokens, max(0, slots)))


def blocks_ahead(
    running: int, lookahead_steps: int, headroom_blocks: int, block_tokens: int
) -> int:
    """Free blocks that `running` requests should find.

    Those of `lookahead_steps` decode steps, so that memory arrives before it is needed, and
    some headroom.
    """
    if not running:
        return 0
    return blocks_for(running * lookahead_steps, block_tokens) + headroom_blocks


def demand(*, ahead: int, starting: int, free_blocks: int, missing_blocks: int) -> Demand:
    """The wishes of one moment, in blocks.

    Fewer free blocks than `ahead` are the low-water mark: growth is then asked for up to
    `ASKED` times as many, so that it is asked for rarely.

    `missing_blocks` is what the last failed allocation of a running request lacked beyond
    `free_blocks`; see `blocks_ahead`, and `blocks_to_start` for what is `starting`.
    """
    fill = ASKED * ahead
    if missing_blocks:
        growth, spare = missing_blocks + fill, 0
    elif free_blocks < ahead:
        growth, spare = fill - free_blocks, 0
    else:
        growth, spare = 0, free_blocks - ahead
    return Demand(growth, max(0, starting - spare))


def borrowed(usable_blocks: int, own_blocks: int) -> int:
    """Blocks beyond the share, which newcomers leave free if memory moves for growth only.

    Else a newcomer would take what was asked for running requests, grow in turn, and the next
    asking would borrow for admission after all.
    """
    return max(0, usable_blocks - own_blocks)
