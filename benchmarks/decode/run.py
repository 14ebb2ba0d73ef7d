"""Simulation of one policy, step by step: the missing blocks are loaded, then the step computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.decode import prefetching
from benchmarks.decode.movement import Movement
from benchmarks.decode.orders import POLICIES, Known
from benchmarks.decode.outcome import Machine, Outcome
from benchmarks.decode.places import Places, Tier
from benchmarks.decode.rotation import Change, Rotation, Sequence
from mirage.simulate.hierarchy import Speed
from mirage.tiers.blocks import Name
from mirage.tiers.prefetch import ahead


class Decode:
    """A run under one of `POLICIES`. Policies that prefetch bring blocks up to
    `ahead` steps early.
    """

    def __init__(
        self, name: str, rotation: Rotation, machine: Machine, ahead: int, stay: int
    ) -> None:
        """`stay` is the number of blocks that stay on the device under the policy `static`."""
        self.policy, self.rotation, self.machine = POLICIES[name], rotation, machine
        self.ahead = ahead if self.policy.ahead else 0
        self.now = 0
        self.outcome = Outcome()
        self.places = Places(machine.sizes, machine.host, machine.ssd)
        self._sequences = {s.id: s for s in (*rotation.running, *rotation.queue)}
        known = Known(rotation, self._sequences.__getitem__, stay)
        self.movement = Movement(self.places, lambda: self.policy.order(known))
        self.movement.place(n for s in (*rotation.running, *rotation.queue) for n in s.blocks)

    def run(self, steps: int) -> Outcome:
        """Run so many steps. Raises `FullError` if the device does not hold a batch, or the tiers
        below are full.
        """
        for _ in range(steps):
            self.step()
        self.outcome.blocks_up = self.places.blocks_up
        self.outcome.blocks_down = self.places.blocks_down
        return self.outcome

    def step(self) -> None:
        change = self.rotation.step()
        self._depart(change)
        missing, ready = self._look(change)
        come = self.movement.bring(missing, self.now)
        for name in change.written:
            self.places.written(name)
        ready = max(ready, self.movement.bear(change.born, self.now))
        running = self.rotation.running
        computed = self.machine.compute_ps(len(running), self.rotation.context)
        if self.policy.layered:
            end = self._layered(max(ready, self.now), come, computed)
        else:
            end = max(ready, come) + computed
        if self.ahead:
            self._prefetch(end - computed, computed)
        self.outcome.add(end - self.now, computed, len(running))
        self.now = end

    def _depart(self, change: Change) -> None:
        for sequence in change.finished:
            self.movement.remove(sequence.blocks, self.now)
            del self._sequences[sequence.id]
        for sequence in change.left:
            self.movement.used(sequence.blocks)
        for sequence in change.entered:
            self._sequences[sequence.id] = sequence
        self.movement.staying = {sequence.id for sequence in self.rotation.running}

    def _look(self, change: Change) -> tuple[list[Name], int]:
        """Blocks that requests whose turns begin lack on the device, and the time at which all
        their blocks under way have arrived.
        """
        missing: list[Name] = []
        ready = self.now
        for name in (name for names in change.returned for name in names):
            tier = self.places.at[name]
            if tier is not Tier.DEVICE:
                missing.append(name)
                where = tier.name.lower()
            else:
                ready = max(ready, self.places.ready(name))
                where = "early" if name in self.movement.early else "device"
                self.movement.early.discard(name)
            self.outcome.found[where] += 1
            if where != "device":
                self.outcome.below[int(name.key)] += 1
        return missing, ready

    def _layered(self, start: int, come: int, computed: int) -> int:
        """End of a step that loads each layer's blocks while the layer before computes, so that
        only the first layer's are waited for.
        """
        loading, layers = max(0, come - start), self.machine.layers
        slower = max(computed, loading)
        return start + (loading + (layers - 1) * slower + computed) // layers

    def _prefetch(self, start: int, computed: int) -> None:
        """Run Algorithm 1 at the start of a step: the links bring as many blocks as fit their
        window.
        """
        window, places = self.ahead * computed, self.places
        movement = self.movement
        movement.staying = {s.id for s in self.rotation.coming(self.ahead)} | movement.staying
        down = self._fitting(window - places.down.backlog(start))
        spare = prefetching.births(self.rotation, self.ahead)
        movement.clear(spare, down, start)
        coming = self.rotation.coming(self.ahead)
        queued, block = places.up.backlog(start), places.up.takes(self.machine.sizes.block_bytes)
        self.outcome.crowded_steps += prefetching.crowded(
            self.rotation, self._lacking(coming), self.ahead, computed, block, queued
        )
        read = self._fitting(window - places.read.backlog(start), self.machine.ssd)
        far = prefetching.Far(places, read)
        room = self._fitting(window - queued)
        chosen = ahead(coming, lambda s: prefetching.lacking(s, places), room, far.fits)
        movement.bring_early([name for _, name in chosen], spare, start)

    def _lacking(self, coming: Iterable[Sequence]) -> Iterator[Name]:
        return (n for sequence in coming for n in prefetching.lacking(sequence, self.places))

    def _fitting(self, window: int, link: Speed | None = None) -> int:
        link = link or self.machine.host
        block_bytes = self.machine.sizes.block_bytes
        return prefetching.fitting(window, link.latency_ps, link.bytes_per_s, block_bytes)
