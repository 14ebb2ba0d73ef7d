"""Orders in which the blocks of one tier go down. LRU is that of `mirage/tiers`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.decode.rotation import Rotation, Sequence
from mirage.tiers.blocks import Name
from mirage.tiers.policies import LRU, EvictionPolicy

Lookup = Callable[[bytes], Sequence]
"""Function that returns the request with an id."""


class Static(LRU):
    """Order in which blocks stay where they were first written: the first `room` blocks on this
    tier. Other blocks are there for one turn, and are evicted first.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._placed: dict[Name, None] = {}
        self._seen: set[Name] = set()

    def add(self, name: Name) -> None:
        if name not in self._seen and len(self._placed) < self._room:
            self._placed[name] = None
        elif name not in self._placed:
            super().add(name)
        self._seen.add(name)

    def drop(self, name: Name) -> None:
        self._seen.discard(name)
        self.evict(name)

    def evict(self, name: Name) -> None:
        self._placed.pop(name, None)
        super().evict(name)

    def victims(self) -> Iterator[Name]:
        yield from super().victims()
        yield from self._placed

    def __len__(self) -> int:
        return super().__len__() + len(self._placed)


class Frequency:
    """Order in which the least frequently used block is evicted first; among equal ones, the least
    recently used. A new block starts at the highest count of any evicted one plus one, so blocks
    that were used much long ago are evicted in the end (dynamic aging).
    """

    def __init__(self) -> None:
        self._count: dict[Name, int] = {}
        self._by_count: dict[int, OrderedDict[Name, None]] = {}
        self._age = 0

    def add(self, name: Name) -> None:
        if name in self._count:
            self.use(name)
        else:
            self._enter(name, self._age + 1)

    def use(self, name: Name) -> None:
        if name in self._count:
            self._enter(name, self._leave(name) + 1)

    def evict(self, name: Name) -> None:
        if name in self._count:
            self._age = max(self._age, self._leave(name))

    def drop(self, name: Name) -> None:
        if name in self._count:
            self._leave(name)

    def victims(self) -> Iterator[Name]:
        for count in sorted(self._by_count):
            yield from self._by_count[count]

    def __len__(self) -> int:
        return len(self._count)

    def _enter(self, name: Name, count: int) -> None:
        self._count[name] = count
        self._by_count.setdefault(count, OrderedDict())[name] = None

    def _leave(self, name: Name) -> int:
        count = self._count.pop(name)
        names = self._by_count[count]
        del names[name]
        if not names:
            del self._by_count[count]
        return count


class Ranked:
    """Order by rank: the block of the lowest rank is evicted first; among equal ones, the one that
    got its rank first.
    """

    def __init__(self) -> None:
        self._rank: dict[Name, int] = {}
        self._at: dict[int, OrderedDict[Name, None]] = {}

    def add(self, name: Name) -> None:
        self._enter(name, self.rank(name))

    def use(self, name: Name) -> None:
        if name in self._rank:
            self._enter(name, self.rank(name))

    def evict(self, name: Name) -> None:
        rank = self._rank.pop(name, None)
        if rank is not None:
            names = self._at[rank]
            del names[name]
            if not names:
                del self._at[rank]

    drop = evict

    def victims(self) -> Iterator[Name]:
        for rank in sorted(self._at):
            yield from self._at[rank]

    def __len__(self) -> int:
        return len(self._rank)

    def rank(self, name: Name) -> int:
        """Rank of a block that has just come or was used."""
        raise NotImplementedError

    def _enter(self, name: Name, rank: int) -> None:
        self.evict(name)
        self._rank[name] = rank
        self._at.setdefault(rank, OrderedDict())[name] = None


class ByReads(Ranked):
    """Order in which the block that the fewest decode steps have read since it was written, on any
    tier, is evicted first. `Frequency` counts turns and ages, so for requests that take turns in a
    queue it is almost LRU.
    """

    def __init__(self, sequence: Lookup, block_tokens: int) -> None:
        super().__init__()
        self._sequence, self._block_tokens = sequence, block_tokens

    def rank(self, name: Name) -> int:
        sequence = self._sequence(name.fingerprint)
        return sequence.tokens - max(sequence.prompt, int(name.key) * self._block_tokens)


class ByAttention(Ranked):
    """Order in which the block with the least attention is evicted first: the farther from the
    newest token, the less; a request's first block goes last. This stands in for measured scores,
    which fall with distance except for attention sinks.
    """

    def __init__(self, sequence: Lookup) -> None:
        super().__init__()
        self._sequence = sequence

    def rank(self, name: Name) -> int:
        number = int(name.key)
        return number - len(self._sequence(name.fingerprint).blocks) if number else 0


class ByTurn:
    """Order in which the block is evicted first whose request the scheduler reaches last. In a
    queue this is Belady's rule.
    """

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._held: dict[bytes, dict[Name, None]] = {}

    def add(self, name: Name) -> None:
        self._held.setdefault(name.fingerprint, {})[name] = None

    def use(self, name: Name) -> None: ...

    def evict(self, name: Name) -> None:
        held = self._held.get(name.fingerprint, {})
        held.pop(name, None)
        if not held:
            self._held.pop(name.fingerprint, None)

    drop = evict

    def victims(self) -> Iterator[Name]:
        for sequence in reversed(self._rotation.queue):
            yield from reversed(self._held.get(sequence.id, {}))

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))


class Known(NamedTuple):
    """Facts of a run that an order may use."""

    rotation: Rotation
    sequence: Lookup
    stay: int
    """Number of places on the device for blocks that never move."""


@dataclass(frozen=True)
class Policy:
    """A policy of TierKV. The one named `oracle` is a bound, not a policy (see `oracle.py`)."""

    order: Callable[[Known], EvictionPolicy]
    ahead: bool = False
    """True if blocks are prefetched before their requests' turns, in the order of the turns
    (Algorithm 1).
    """
    layered: bool = False
    """True if a step's missing blocks come layer by layer, one layer ahead of the attention."""


SIX = ("lru", "frequency", "static", "attention", "prefetch", "oracle")
"""TierKV's six policies in its order: the slowest first."""
POLICIES: dict[str, Policy] = {
    "lru": Policy(lambda known: LRU()),
    "frequency": Policy(lambda known: Frequency()),
    "reads": Policy(lambda known: ByReads(known.sequence, known.rotation.block_tokens)),
    "static": Policy(lambda known: Static(known.stay)),
    "attention": Policy(lambda known: ByAttention(known.sequence), layered=True),
    "prefetch": Policy(lambda known: ByTurn(known.rotation), ahead=True),
}
ORACLE = "oracle"
NAMES = (*POLICIES, ORACLE)
