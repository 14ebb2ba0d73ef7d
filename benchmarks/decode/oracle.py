"""Bound of all policies: the fewest blocks, each as early as its link carries it.

The oracle knows the whole future, so it loads as few blocks as possible (Belady), and only the
link's rate keeps it from loading them early: not even room does. It is a bound, no schedule.
"""

from __future__ import annotations

from benchmarks.decode.outcome import Machine, Outcome
from benchmarks.decode.rotation import Rotation, Sequence
from mirage.simulate.roofline import PS


class FewestLoads:
    """Counts the loads of a device of `blocks` places under Belady's rule, change by change.

    Of a queue the last one is needed last. Counts per request do, since all its blocks are
    needed at once. Begins with the batch and then the queue's first, as policies do.
    """

    def __init__(self, rotation: Rotation, blocks: int) -> None:
        self._rotation, self._free = rotation, blocks
        self._held: dict[bytes, int] = {}
        for sequence in (*rotation.running, *rotation.queue):
            held = min(self._free, len(sequence.blocks))
            self._hold(sequence, held)

    def change(self, finished: list[Sequence], entered: list[tuple[Sequence, int]]) -> int:
        """Blocks to load before the next step; `entered` with the blocks that each had before."""
        for sequence in finished:
            self._free += self._held.pop(sequence.id, 0)
        loads = sum(had - self._held.get(sequence.id, 0) for sequence, had in entered)
        for sequence in self._rotation.running:
            self._hold(sequence, len(sequence.blocks) - self._held.get(sequence.id, 0))
        for sequence in reversed(self._rotation.queue):
            if self._free >= 0:
                break
            gone = min(-self._free, self._held.get(sequence.id, 0))
            self._hold(sequence, -gone)
        assert self._free >= 0, "the batch alone is larger than the device"
        return loads

    def _hold(self, sequence: Sequence, more: int) -> None:
        self._free -= more
        self._held[sequence.id] = self._held.get(sequence.id, 0) + more


class Link:
    """The time before which so many blocks cannot have come over one link."""

    def __init__(self, rotation: Rotation, blocks: int, block_ps: float) -> None:
        """Bound of the tiers that hold `blocks`; `block_ps` is a block's time."""
        self._fewest, self._block_ps = FewestLoads(rotation, blocks), block_ps
        self.loads = 0

    def change(self, finished: list[Sequence], entered: list[tuple[Sequence, int]]) -> int:
        """Picoseconds from the beginning."""
        self.loads += self._fewest.change(finished, entered)
        return int(self.loads * self._block_ps)


def bound(rotation: Rotation, machine: Machine, steps: int) -> Outcome:
    """Each step as early as can be: compute follows compute, and loads follow loads."""
    sizes, outcome, now = machine.sizes, Outcome(), 0
    links = [Link(rotation, sizes.device, sizes.block_bytes / machine.host.bytes_per_s * PS)]
    if machine.ssd:
        above = sizes.device + sizes.host
        links.append(Link(rotation, above, sizes.block_bytes / machine.ssd.bytes_per_s * PS))
    for _ in range(steps):
        change = rotation.step()
        entered = [(s, len(had)) for s, had in zip(change.entered, change.returned, strict=True)]
        come = max(link.change(change.finished, entered) for link in links)
        computed = machine.compute_ps(len(rotation.running), rotation.context)
        end = max(now + computed, come)
        outcome.add(end - now, computed, len(rotation.running))
        outcome.found["device"] += sum(had for _, had in entered)
        now = end
    outcome.blocks_up = links[0].loads
    outcome.found["device"] -= outcome.blocks_up
    outcome.found["early"] = outcome.blocks_up
    return outcome
