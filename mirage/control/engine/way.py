"""Way of one engine's memory to its newest allotment, one move after the other. Pure.

Giving comes before taking, and nothing in use is given: layers or experts go first, then KV extents
that no request uses. The freed memory pays first for extents that are wanted, and the rest of it
for layers or experts that come back. The caller may carry out less than a move says, or postpone
it: the next round begins with what is held by then.

An engine falls asleep in one round, once nothing runs. When it wakes, the first round takes its
layers, and extents for one request: with these it computes while the layers are loaded. Later
rounds take the other extents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol

from mirage.protocol import Allotment, LentInTurns
from mirage.streaming.giving import affordable

Kind = Literal["layer", "extent"]
Lent = LentInTurns | Literal["at once"]
"""Layers whose memory is given away: "nothing" for none; "at once" for this engine's own layers;
"in turns" and "in turns that drain" for layers of any model, under temporal sharing."""


class Memory(Protocol):
    """Memory of one engine. `Way` reads it anew before each move."""

    @property
    def layers_remapped(self) -> int:
        """Number of layers given away."""

    @property
    def stream_slots(self) -> int:
        """Number of slots that the streamed layers share."""

    @property
    def experts(self) -> int:
        """Number of experts of each layer given away."""

    @property
    def absent(self) -> bool:
        """True if all layers are given away: no step may run."""

    @property
    def least_extents(self) -> int:
        """KV extents that a request of the greatest length needs."""

    @property
    def usable_extents(self) -> int:
        """Number of KV extents whose blocks may be given to requests."""

    @property
    def retiring_extents(self) -> int:
        """Number of KV extents that keep their memory until no request uses them; none of their
        blocks is given."""

    def busy_extents(self) -> int:
        """Return the number of usable and retiring extents with blocks in use, the null block's
        extent included; 0 if no block is in use."""

    def awaits_requests(self) -> bool:
        """True if a retiring extent has blocks in use."""

    def at_rest(self) -> bool:
        """True if no request runs and no step is in flight."""

    def may_retire(self) -> bool:
        """True if extents may retire now. Always true without a tier. With one, False from the
        scheduling of a step until it has run: a block that the step will fill is known by its
        content already, but does not hold it. So the content could not be copied to the tier, and
        would be lost."""

    def emptied_extents(self) -> int:
        """Return the number of retiring extents that no request uses, nor any step in flight."""

    def affordable_extents(self) -> int:
        """Return the number of KV extents that granted and unused memory pays for."""

    def spare(self) -> int:
        """Return the bytes that are granted and not held."""

    def cost(self, remapped: int, experts: int) -> int:
        """Return the bytes held without KV extents, with `remapped` layers given away, or `experts`
        of each layer."""


class PassBounds(Protocol):
    """Limits on the moves of one round."""

    def paced(self, kind: Kind, wanted: int) -> int:
        """Return the number of the `wanted` layers or extents (`kind`) that the round has time to
        move; 0 if `wanted` is below 1."""

    def obtainable(self, kind: Kind, wanted: int) -> int:
        """Return the number of the `wanted` layers or extents (`kind`) for which to ask the device
        for granted memory now."""


class Unbounded:
    """No limits: one round moves everything."""

    def paced(self, kind: Kind, wanted: int) -> int:
        """Return `wanted`, or 0 if it is negative."""
        return max(0, wanted)

    def obtainable(self, kind: Kind, wanted: int) -> int:
        """Return `wanted`, or 0 if it is negative."""
        return max(0, wanted)


class Parameters(NamedTuple):
    """Move: set the numbers of layers and experts given away, and of slots, from now on.

    `back` is the number of layers that return, 0 if none does. `wanted` is the number for whose
    return the engine has memory; more than `back` if `PassBounds` limits the round. If experts are
    involved, both are 1.
    """

    layers_remapped: int
    stream_slots: int
    experts: int
    back: int = 0
    wanted: int = 0


class Retire(NamedTuple):
    """Move: retire `extents` usable extents; with `anew`, all retiring ones are made usable
    before."""

    extents: int
    anew: bool = False


class CallBack(NamedTuple):
    """Move: make `extents` retiring extents usable again."""

    extents: int


class Unmap(NamedTuple):
    """Move: release the memory of `extents` emptied extents."""

    extents: int


class Map(NamedTuple):
    """Move: map memory to `extents` more extents."""

    extents: int
    wanted: int
    """Number of extents that are missing and that the engine has memory for; more than `extents` if
    `PassBounds` limits the round."""


Move = Parameters | Retire | CallBack | Unmap | Map
UNBOUNDED = Unbounded()


class Way:
    """Newest allotment of one engine, and the moves that lead its memory there, round by round."""

    def __init__(self, memory: Memory, bounds: PassBounds = UNBOUNDED) -> None:
        self._memory, self._bounds = memory, bounds
        self.target: Allotment | None = None
        self._woke = False
        """True while all layers are absent, and after that until the allotment is reached or memory
        is to be given again."""

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment; False for one that is not newer than the present one."""
        if self.target is not None and allotment.revision <= self.target.revision:
            return False
        self._woke = self.wakes
        self.target = allotment
        return True

    @property
    def reached(self) -> bool:
        """True if the engine holds the layers, experts and usable KV extents of its allotment, and
        no retiring extent; also before the first allotment."""
        target, memory = self.target, self._memory
        return target is None or (
            memory.usable_extents == target.kv_extents
            and not memory.retiring_extents
            and (memory.layers_remapped, memory.experts) == (target.layers_remapped, target.experts)
        )

    @property
    def rests(self) -> bool:
        """True if no step may be scheduled: the engine is to sleep, or all its layers are away."""
        return self._memory.absent or (self.target is not None and self.target.asleep)

    @property
    def wakes(self) -> bool:
        """True if the engine computes again and does not hold its whole allotment yet.

        False if it is to give memory back meanwhile, because other engines wait for that.
        """
        return self._woke and not self.rests and not self.reached and not self._gives

    @property
    def _gives(self) -> bool:
        return self.target is not None and self.target.kv_extents < self._memory.usable_extents

    @property
    def asleep(self) -> bool:
        """True if the engine is to sleep, and holds exactly what its allotment leaves it."""
        return self.target is not None and self.target.asleep and self.reached

    @property
    def exceeded(self) -> bool:
        """True if the allotment recalls memory and running requests use more extents than it
        leaves."""
        target, memory = self.target, self._memory
        return (
            target is not None
            and target.recall
            and memory.usable_extents + memory.retiring_extents > target.kv_extents
            and memory.busy_extents() > target.kv_extents
        )

    def recalls(self, running: int) -> bool:
        """True if one of `running` requests must be preempted, because they use more extents than a
        recall leaves them.

        The last request stays. Any allotment holds the blocks of one request, so it has more
        extents only because its blocks fill them in part.
        """
        return running > 1 and self.exceeded

    @property
    def open_extents(self) -> int | None:
        """Number of KV extents up to which waiting requests are admitted, since running ones may
        need the others; None for all extents."""
        return None if self.target is None else self.target.open_extents

    @property
    def lent(self) -> Lent:
        """Layers whose memory is given away. The newest allotment says so under temporal sharing;
        otherwise the value is "at once" if layers of this engine are away."""
        if self.target is not None and self.target.lent != "nothing":
            return self.target.lent
        return "at once" if self._memory.layers_remapped else "nothing"

    def moves(self) -> Iterator[Move]:
        """Yield the moves of one round; carry each out before asking for the next."""
        return iter(()) if self.target is None else self.moves_to(self.target)

    def moves_to(self, target: Allotment) -> Iterator[Move]:
        """Yield the moves of one round towards `target`, as `moves` does."""
        if target.asleep and not self._memory.at_rest():
            return
        yield from self._give_parameters(target)
        yield from self._give_extents(target)
        self._woke = self._memory.absent or self.wakes
        if self._memory.absent and not target.asleep:
            yield from self._take_parameters(target)
            yield from self._take_extents(target, self._memory.least_extents)
            return
        yield from self._take_extents(target, target.kv_extents)
        yield from self._take_parameters(target)

    # -- giving -------------------------------------------------------------------------

    def _give_parameters(self, target: Allotment) -> Iterator[Move]:
        memory = self._memory
        remapped, experts = self._affordable(target, 0)
        if self._turns(target):
            if (remapped, experts) != (memory.layers_remapped, memory.experts):
                yield Parameters(remapped, self._slots(target, remapped), experts, 1, 1)
            return
        count = remapped - memory.layers_remapped
        count = count if target.asleep else self._bounds.paced("layer", count)
        if count > 0:  # they stream through as many slots as are wanted
            yield Parameters(memory.layers_remapped + count, target.stream_slots, 0)

    def _give_extents(self, target: Allotment) -> Iterator[Move]:
        memory = self._memory
        # Requests in other extents may have ended: then extents that are empty now retire instead.
        anew = target.recall and memory.awaits_requests()
        beyond = memory.usable_extents - target.kv_extents
        beyond += memory.retiring_extents if anew else 0
        if beyond > 0 and memory.may_retire():
            yield Retire(beyond, anew)
        emptied = self._bounds.paced("extent", memory.emptied_extents())
        if emptied > 0:
            yield Unmap(emptied)

    # -- taking -------------------------------------------------------------------------

    def _take_extents(self, target: Allotment, most: int) -> Iterator[Move]:
        """Yield the moves that take extents until there are `most`, or as many as `target` has or
        memory is affordable for."""
        memory = self._memory
        missing = min(most, target.kv_extents) - memory.usable_extents
        if missing <= 0:
            return
        back = min(missing, memory.retiring_extents)
        if back:
            yield CallBack(back)
        wanted = min(missing - back, memory.affordable_extents())
        count = self._obtainable("extent", wanted)
        if count > 0:
            yield Map(count, wanted)

    def _take_parameters(self, target: Allotment) -> Iterator[Move]:
        memory = self._memory
        remapped, experts = self._affordable(target, memory.spare())
        if self._turns(target):
            away = remapped, experts
            if away != (memory.layers_remapped, memory.experts) and self._bounds.obtainable(
                "layer", 1
            ):
                yield Parameters(remapped, self._slots(target, remapped), experts, 1, 1)
            return
        wanted = memory.layers_remapped - remapped
        count = self._obtainable("layer", wanted)
        remapped = memory.layers_remapped - count
        slots = self._slots(target, remapped)
        if count or (slots != memory.stream_slots and not memory.absent):
            yield Parameters(remapped, slots, 0, count, wanted)

    def _turns(self, target: Allotment) -> bool:
        """True if experts are involved: layers and experts are exchanged in a single move."""
        return bool(self._memory.experts or target.experts)

    def _affordable(self, target: Allotment, spare: int) -> tuple[int, int]:
        memory = self._memory
        held, wanted = (
            (memory.layers_remapped, memory.experts),
            (target.layers_remapped, target.experts),
        )
        return affordable(memory.cost, held, wanted, spare)

    def _slots(self, target: Allotment, remapped: int) -> int:
        """Return the slots for `remapped` layers: the target's only once its layers are reached,
        since on the way more slots could cost a layer.

        Absent layers have no slot, so the first layers that come back share one.
        """
        slots = (
            target.stream_slots
            if remapped == target.layers_remapped
            else self._memory.stream_slots or 1
        )
        return slots if remapped else 0

    def _obtainable(self, kind: Kind, wanted: int) -> int:
        return self._bounds.obtainable(kind, self._bounds.paced(kind, wanted))
