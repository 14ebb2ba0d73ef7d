"""Pool in the process of the engine that uses it: for tests, and for an engine by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

from mirage.tiers.acting import Acting
from mirage.tiers.blocks import Name, Tell
from mirage.tiers.contract import BlockPlace, Key, LentBy, Lookup, Medium, Member
from mirage.tiers.core import Core
from mirage.tiers.lending.lenders import Lenders


class LocalPool:
    """`mirage.tiers.contract.Pool` in this process, which owns `core` from now on.

    Several members of one core are several `LocalPool`s: see `beside`. Raises `OSError` or
    `HolderRefused` if the memory of a tier cannot be had, and `MemberRefused` as `Core.join` does.
    """

    def __init__(
        self,
        core: Core,
        member: Member,
        peer_bytes_per_s: float | None = None,
        lenders: Lenders | None = None,
    ) -> None:
        self._shared = _Shared(core, peer_bytes_per_s, lenders)
        self._join(member)

    @classmethod
    def beside(cls, other: LocalPool, member: Member) -> LocalPool:
        """Return another member of the same pool."""
        made = cls.__new__(cls)
        made._shared = other._shared
        made._join(member)
        return made

    def _join(self, member: Member) -> None:
        self._number = self._shared.core.join(member)
        self._answers: dict[str, _Answers] = {}
        self._loaded: dict[str, set[Key]] = {}
        self._shared.listeners[self._number] = self._answers
        self._closed = False

    def resize(self, budget: int) -> None:
        """Set the budget as the server does. Raises `ValueError` as `Core.resize` does."""
        self._shared.core.resize(budget)
        self._shared.carry_out()

    def resize_peer(self, device: str, budget: int) -> None:
        """Set a peer's budget as the server does. Raises `ValueError` as `Core.resize_peer`
        does."""
        self._shared.core.resize_peer(device, budget)
        self._shared.carry_out()

    def seek(self, request: str, keys: Iterable[Key], *, rise: bool = True) -> None:
        self._answers.setdefault(request, _Answers())
        self._shared.core.seek(self._number, request, keys, rise=rise)
        self._shared.carry_out()

    def found(self, request: str, key: Key) -> Lookup:
        self._shared.carry_out()
        return self._answers.get(request, _Answers())[key][0]

    def places(self, request: str, keys: Iterable[Key]) -> list[BlockPlace]:
        self._shared.carry_out()
        wanted, answers = list(keys), self._answers.get(request, _Answers())
        for key in wanted:
            if answers[key][0] is not Lookup.READY:
                raise KeyError(key)
        self._loaded.setdefault(request, set()).update(wanted)
        return [replace(self._place(answers[key][1]), risen=key in answers.risen) for key in wanted]

    def leave(self, request: str) -> None:
        if (answers := self._answers.pop(request, None)) is not None:
            places = [self._place(answers[key][1]) for key in self._loaded.pop(request, ())]
            from_peers = sum(place.medium is Medium.PEER for place in places)
            self._shared.core.leave(self._number, request, len(places), from_peers)
            self._shared.carry_out()

    def reserve(self, keys: Iterable[Key]) -> Mapping[Key, BlockPlace]:
        given = self._shared.core.reserve(self._number, keys)
        self._shared.carry_out()
        return {key: self._place(offset) for key, offset in given.items()}

    def commit(self, keys: Iterable[Key]) -> None:
        self._shared.core.commit(self._number, keys)
        self._shared.carry_out()

    def abandon(self, keys: Iterable[Key]) -> None:
        self._shared.core.abandon(self._number, keys)
        self._shared.carry_out()

    def memory(self, medium: Medium) -> memoryview:
        return self._shared.acting.regions.memory(medium)

    def lenders(self) -> tuple[LentBy, ...]:
        return self._shared.acting.regions.lenders

    def locks(self) -> None:
        """Return None: this pool has no connection for page-locking slabs of host memory. So an
        engine page-locks each place separately, while it copies from or to it."""

    def bytes_per_s(self, medium: Medium) -> float | None:
        return self._shared.acting.regions.bytes_per_s(medium)

    @property
    def lost(self) -> bool:
        """Return False: the pool ends with this process."""
        return False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        del self._shared.listeners[self._number]
        self._answers.clear()
        self._shared.core.ended(self._number)
        self._shared.carry_out()
        if not self._shared.listeners:
            self._shared.acting.close()

    def _place(self, offset: int) -> BlockPlace:
        return self._shared.acting.regions.place(offset)


class _Answers(dict[Key, tuple[Lookup, int]]):
    """Last answers to a request, by key."""

    def __init__(self) -> None:
        super().__init__()
        self.risen: set[Key] = set()
        """Keys that were on their way up from the disk when the request asked."""

    def __missing__(self, key: Key) -> tuple[Lookup, int]:
        return Lookup.ABSENT, 0

    def heard(self, tell: Tell) -> None:
        self[tell.key] = (tell.found, tell.offset)
        if tell.found is Lookup.RISING:
            self.risen.add(tell.key)


class _Shared:
    """One core, and the members that are told of its answers."""

    def __init__(self, core: Core, peer_bytes_per_s: float | None, lenders: Lenders | None) -> None:
        self.core = core
        self.listeners: dict[int, dict[str, _Answers]] = {}
        self._words: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.acting = Acting(core, self, peer_bytes_per_s, lenders)

    def sunk(self, name: Name, *, whole: bool) -> None:
        self._words.put(partial(self.core.sunk, name, whole=whole))

    def risen(self, name: Name, *, whole: bool) -> None:
        self._words.put(partial(self.core.risen, name, whole=whole))

    def moved(self, name: Name, *, whole: bool) -> None:
        self._words.put(partial(self.core.moved, name, whole=whole))

    def returned(self, offset: int) -> None:
        self._words.put(partial(self.core.returned, offset))

    def lent_in_vain(self, offset: int) -> None:
        self._words.put(partial(self.core.lent_in_vain, offset))

    def lost(self, device: str) -> None:
        self._words.put(partial(self.core.lost, device))

    def carry_out(self) -> None:
        while not self._words.empty():
            self._words.get()()
        for tell in self.acting.carry_out():
            answers = self.listeners.get(tell.seeker.member, {})
            if (mine := answers.get(str(tell.seeker.request))) is not None:
                mine.heard(tell)
