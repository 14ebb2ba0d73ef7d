"""Bound of all policies: the fewest blocks, each as early as its link carries it.

The oracle knows the whole future, so it loads as few blocks as possible (Belady), and only the
link's rate keeps it from loading them early: not even room does. It is a bound, no schedule.
"""

from __future__ import annotations

from benchmarks.decode.outcome import Machine, Outcome
from benchmarks.decode.rotation import Rotation, Sequence
from mirage.simulate.roofline import PS


class FewestLoads:
    """Count of the fewest loads that a device of `blocks` places needs, by Belady's rule, as the
    batch changes.

    In a queue, the last request is needed last. Counts per request suffice, since all its blocks
    are needed at the same time. At first the device has the batch and then the first of the queue,
    as under the policies.
    """

    def __init__(self, rotation: Rotation, blocks: int) -> None:
        self._rotation, self._free = rotation, blocks
        self._held: dict[bytes, int] = {}
        for sequence in (*rotation.running, *rotation.queue):
            held = min(self._free, len(sequence.blocks))
            self._hold(sequence, held)

    def change(self, finished: list[Sequence], entered: list[tuple[Sequence, int]]) -> int:
        """Number of blocks to load before the next step; `entered` has for each request the blocks
        that it had before.
        """
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
    """Lower bound on the time at which the needed blocks have come over one link."""

    def __init__(self, rotation: Rotation, blocks: int, block_ps: float) -> None:
        """Link below the tiers that hold `blocks` blocks in all; `block_ps` is the picoseconds of
        one block.
        """
        self._fewest, self._block_ps = FewestLoads(rotation, blocks), block_ps
        self.loads = 0

    def change(self, finished: list[Sequence], entered: list[tuple[Sequence, int]]) -> int:
        """Lower bound on the time at which the blocks of the next step have come, in picoseconds
        from the start.
        """
        self.loads += self._fewest.change(finished, entered)
        return int(self.loads * self._block_ps)


def bound(rotation: Rotation, machine: Machine, steps: int) -> Outcome:
    """Bound on all policies: each step begins as early as compute and the fewest loads allow."""
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
