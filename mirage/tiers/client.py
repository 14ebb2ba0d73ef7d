"""Engine's end of the host pool. After any failure it behaves as if nothing were stored."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mirage.tiers.contract import ANSWER_S, BlockPlace, Key, LentBy, Lookup, Medium, Member
from mirage.tiers.line import join
from mirage.tiers.messages import (
    Abandon,
    Bye,
    Commit,
    Given,
    Leave,
    News,
    Reserve,
    Seek,
    ToEngine,
    portions,
)
from mirage.tiers.region import Regions
from mirage.wire import Broken, Channel

logger = logging.getLogger("mirage.tiers")


class _Request:
    """One request from its first `seek` to `leave`: the pool's answers so far, by key, and the keys
    whose places were handed out."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.keys: dict[Key, tuple[Lookup, int]] = {}
        """State of each key by the newest answer, UNKNOWN before it, and the place's offset in
        bytes if the state is READY."""
        self.loaded: set[Key] = set()
        """Keys whose places `places` has returned."""
        self.risen: set[Key] = set()
        """Keys that were on their way up from the disk when the pool was asked."""


class PoolClient:
    """A `mirage.tiers.contract.Pool` over the socket at `path`, used by one thread."""

    def __init__(
        self,
        path: Path,
        member: Member,
        answer_s: float = ANSWER_S,
        without: str = "KV blocks are computed anew",
    ) -> None:
        """Join the pool. Never raises: without a pool nothing is ever found, and nothing stored.

        `without` says in the log what happens then.
        """
        self._answer_s, self._without = answer_s, without
        self._recalled: list[str] = []
        self._requests: dict[str, _Request] = {}
        self._by_number: dict[int, _Request] = {}
        self._last_request = 0
        self._reserved: set[Key] = set()
        self._given: dict[int, list[tuple[bytes, int]]] = {}
        """Answers to the present questions, by number."""
        self._asked = self._answered = 0
        """Number of the last question, and of the last answered one."""
        self._line: Channel[ToEngine] | None = None
        self._regions: Regions | None = None
        self._locks: socket.socket | None = None
        try:
            self._line, self._regions, self._locks = join(path, member)
        except (OSError, ValueError, Broken) as error:
            logger.warning("no host pool: %s; %s", _words(error), without)

    # -- finding ------------------------------------------------------------------------

    def seek(self, request: str, keys: Iterable[Key], *, rise: bool = True) -> None:
        if self._line is None:
            return
        known = self._requests.get(request)
        if known is None:
            self._last_request += 1
            known = self._requests[request] = _Request(request, self._last_request)
            self._by_number[known.number] = known
        wanted = list(keys)
        for key in wanted:
            if known.keys.get(key, (Lookup.ABSENT, 0))[0] in (Lookup.ABSENT, Lookup.BELOW):
                known.keys[key] = (Lookup.UNKNOWN, 0)
        self._say(*(Seek(known.number, some, rise) for some in portions(wanted)))

    def found(self, request: str, key: Key) -> Lookup:
        known = self._requests.get(request)
        if known is None or key not in known.keys:
            return Lookup.ABSENT
        if known.keys[key][0] not in (Lookup.ABSENT, Lookup.BELOW):
            self._listen()
        return known.keys[key][0] if self._line is not None else Lookup.ABSENT

    def places(self, request: str, keys: Iterable[Key]) -> list[BlockPlace]:
        known, wanted = self._requests.get(request), list(keys)
        places = []
        for key in wanted:
            if known is None or known.keys.get(key, (Lookup.ABSENT, 0))[0] is not Lookup.READY:
                raise KeyError(key)
            place = self._place(known.keys[key][1])
            places.append(replace(place, risen=key in known.risen))
        if known is not None:
            known.loaded.update(wanted)
        return places

    def leave(self, request: str) -> None:
        if (known := self._requests.pop(request, None)) is not None:
            del self._by_number[known.number]
            places = [self._place(known.keys[key][1]) for key in known.loaded]
            from_peers = sum(place.medium is Medium.PEER for place in places)
            self._say(Leave(known.number, len(places), from_peers))

    def recalled(self) -> list[str]:
        """Return the requests that use replicas (copies of parameters on peers) whose memory the
        pool has asked for since the last call. A request may occur several times."""
        recalled, self._recalled = self._recalled, []
        return recalled

    def wait(self, seconds: float) -> None:
        """Wait until the pool sends a message, at most `seconds`, and read it."""
        if self._line is None:
            time.sleep(seconds)
        elif select.select([self._line.socket], [], [], seconds)[0]:
            self._listen()

    @property
    def lost(self) -> bool:
        """True if there is no pool, or no longer one."""
        self._listen()
        return self._line is None

    # -- storing ------------------------------------------------------------------------

    def reserve(self, keys: Iterable[Key]) -> Mapping[Key, BlockPlace]:
        """Reserve places as `Pool.reserve` does. Keys that this client has reserved, and neither
        committed nor abandoned since, are left out. While the answer to an earlier call is missing,
        return an empty mapping and send no question."""
        self._listen()
        wanted = [key for key in keys if key not in self._reserved]
        if self._line is None or not wanted or self._answered < self._asked:
            return {}
        before = self._asked
        questions = []
        for some in portions(wanted):
            self._asked += 1
            questions.append(Reserve(self._asked, some))
        self._given = {question.number: [] for question in questions}
        self._say(*questions)
        self._wait_for(self._asked)
        given = [pair for number in range(before, self._asked + 1) for pair in self._take(number)]
        self._reserved.update(Key(key) for key, _ in given)
        return {Key(key): self._place(offset) for key, offset in given}

    def commit(self, keys: Iterable[Key]) -> None:
        self._say(*map(Commit, portions(self._own(keys))))

    def abandon(self, keys: Iterable[Key]) -> None:
        self._say(*map(Abandon, portions(self._own(keys))))

    # -- the rest -----------------------------------------------------------------------

    def memory(self, medium: Medium) -> memoryview:
        if self._regions is None:
            raise KeyError(medium)
        return self._regions.memory(medium)

    def lenders(self) -> tuple[LentBy, ...]:
        return () if self._regions is None else self._regions.lenders

    def locks(self) -> int | None:
        line, self._locks = self._locks, None
        return None if line is None else line.detach()

    def bytes_per_s(self, medium: Medium) -> float | None:
        return None if self._regions is None else self._regions.bytes_per_s(medium)

    def close(self) -> None:
        """Leave the pool. Nothing may be copied to or from places any more. A second call does
        nothing."""
        if self._line is not None:
            self._say(Bye())
        if self._line is not None:
            self._line.finish(self._answer_s)
        self._forget()
        if self._regions is not None:
            self._regions.close()
            self._regions = None

    def _place(self, offset: int) -> BlockPlace:
        return (
            BlockPlace(Medium.HOST, offset)
            if self._regions is None
            else self._regions.place(offset)
        )

    def _own(self, keys: Iterable[Key]) -> list[Key]:
        own = [key for key in dict.fromkeys(keys) if key in self._reserved]
        self._reserved.difference_update(own)
        return own

    def _take(self, number: int) -> list[tuple[bytes, int]]:
        return self._given.pop(number, [])

    def _wait_for(self, number: int) -> None:
        until = time.monotonic() + self._answer_s
        while self._line is not None and self._answered < number:
            left = until - time.monotonic()
            if left <= 0:
                return
            select.select([self._line.socket], [], [], left)
            self._listen()

    def _listen(self) -> None:
        """Read the messages that have come; never waits."""
        if self._line is None:
            return
        try:
            for message in self._line.hear():
                if isinstance(message, News):
                    self._heard(message)
                elif isinstance(message, Given):
                    self._was_given(message)
                else:
                    raise Broken(f"{type(message).__name__} was not asked for")
        except Broken as error:
            self._lost(error)

    def _heard(self, news: News) -> None:
        if (known := self._by_number.get(news.request)) is not None:
            for key, found, offset in news.answers:
                if found is Lookup.RECALLED:
                    self._recalled.append(known.name)
                    continue
                known.keys[Key(key)] = (found, offset)
                if found is Lookup.RISING:
                    known.risen.add(Key(key))

    def _was_given(self, given: Given) -> None:
        self._answered = given.number
        if given.number in self._given:
            self._given[given.number] = given.places
        elif given.places:  # too late: the caller went on without places
            keys = [Key(key) for key, _ in given.places]
            self._say(*map(Abandon, portions(keys)))

    def _say(self, *messages: Leave | Seek | Reserve | Commit | Abandon | Bye) -> None:
        if self._line is None:
            return
        try:
            self._line.say(*messages)
        except Broken as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        logger.warning("the host pool is lost: %s; %s", _words(error), self._without)
        self._forget()

    def _forget(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._locks is not None:
            self._locks.close()
            self._locks = None
        self._requests.clear()
        self._by_number.clear()
        self._reserved.clear()
        self._given.clear()


def _words(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "it did not answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
