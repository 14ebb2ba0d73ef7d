"""KV memory that the requests of an engine want, and the part that waiting ones leave free.
Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mirage.config import Kept
from mirage.control.answers import Answered, AnswerLengths, growth_to_come
from mirage.control.demand import Demand, blocks_ahead, blocks_later, blocks_soon, demand, kept_free
from mirage.control.engine.way import Lent
from mirage.control.growth_hold import GrowthHold
from mirage.facts import KVGroups

LEFT = 1 / 2
"""Part of the growth to come that waiting requests leave free while layers are lent. Leaving all of
it free hardly saved preemptions in 88 simulated runs, and first tokens came later."""


@dataclass(frozen=True)
class Wants:
    """Demand of one engine for KV memory, by the settings that it was configured with. All results
    are KV blocks.
    """

    groups: KVGroups
    extent_blocks: int
    lookahead_steps: int
    headroom_extents: int
    kept: Kept
    """Rule for the KV memory that waiting requests leave free for running ones."""
    growth_hold: GrowthHold
    lengths: AnswerLengths = field(default_factory=AnswerLengths)

    def demand(self, used_blocks: int, running: int, starting: int) -> Demand:
        """Return the demand of `running` requests that use `used_blocks`; waiting requests need
        `starting` blocks."""
        headroom = self.headroom_extents * self.extent_blocks
        return demand(
            used_blocks=used_blocks,
            due_blocks=self.growth_hold.due,
            ahead=blocks_ahead(self.groups, running, self.lookahead_steps, headroom),
            starting=starting,
        )

    def left_free(
        self,
        running: int,
        usable_extents: int,
        open_extents: int | None,
        wanted: Callable[[], Demand],
        *,
        lent: Lent,
        lent_extents: int,
        answered: Answered,
    ) -> int:
        """Return the blocks that waiting requests leave free.

        `open_extents` of the `usable_extents` are open to waiting requests; None for all. `wanted`
        returns the present demand, whose growth is left free if `kept` is "asked". While layers are
        `lent`, memory is so short that requests which grow beyond what was left free are preempted,
        and computed anew in longer steps. Under temporal sharing all growth of the demand is left
        free then, since all requests of a turn grow together. At least the part `LEFT` of the
        growth to come, by the mean length of `answered`, is left free, unless turns drain: there a
        preempted request goes on in the same turn, and memory that is left free is of no use once
        the turn began.

        Under spatial sharing (`lent` is "at once") at most `lent_extents` are left free beside the
        blocks that are not open: the KV extents in the memory of the model's own lent layers. With
        them, waiting requests have the memory that they would have if no layer was lent. More is
        left free only if it would be left free without lent layers too.
        """
        if self.kept == "nothing":
            return 0
        soon = blocks_soon(self.groups, running, self.lookahead_steps)
        if self.kept == "soon" or (self.kept == "lent" and lent == "nothing"):
            return soon
        asked, to_come = wanted(), 0
        ahead = max(0, asked.growth - asked.used)
        if self.kept == "lent" and lent != "in turns that drain":
            answers = self.groups.grown(round(running * self.lengths.mean(answered)))
            to_come = int(LEFT * growth_to_come(asked.used, answers))
            if lent == "at once":
                most = max(soon, lent_extents * self.extent_blocks)
                ahead = min(most, blocks_later(self.groups, running, self.lookahead_steps))
                to_come = min(most, to_come)
        left = kept_free(
            usable_extents * self.extent_blocks,
            None if open_extents is None else open_extents * self.extent_blocks,
            ahead,
        )
        return max(left, to_come)
