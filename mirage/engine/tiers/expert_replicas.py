"""Copies on peers of cold experts, whose device memory was given away: one thread makes, holds and
drops them, the engine's thread reads them.

The thread never delays a step. To the pool a copy is like a KV block that a request holds, with a
request's name for each expert. A copy that the pool recalls, or that makes way for another one, is
dropped once nothing reads it any more.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mirage.engine.tiers.pool_memory import PoolMemory, borrowing
from mirage.engine_settings import EngineSettings
from mirage.streaming.expert_layout import ExpertLayout
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.replicas import ReplicaWish, gives_way, missing
from mirage.streaming.residency import Expert
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import ANSWER_S, BlockPlace, Key, Lookup, Medium, Member
from vmm.driver import Driver, VmmError

logger = logging.getLogger("mirage.engine.tiers")

LOOK_S = 0.05
"""Seconds between two looks at the wished copies."""
RETRY_S = 1.0
"""Seconds until peers without room are asked again."""
WITHOUT = "experts are loaded from host memory"


def keep_on_peers(
    giver: ExpertStreamer, settings: EngineSettings, weights: bytes
) -> ExpertReplicas | None:
    """Let cold experts have copies on the pool's peers, and return the object that keeps them; None
    if the settings forbid that or name no pool.

    `weights` is the engine's fingerprint: engines with the same fingerprint share copies.
    """
    if not settings.experts_on_peers or settings.tier_socket is None:
        return None
    layout, driver = giver.layout, giver.driver
    mark = hashlib.sha256(f"experts {layout}".encode() + weights).digest()
    member = Member(settings.tenant, mark, layout.nbytes, replicas=True)
    pool = PoolClient(Path(settings.tier_socket), member, without=WITHOUT)
    places = PoolMemory(pool, driver, layout.nbytes, borrowing(pool, driver))
    masters = {layer.index: layer.master for layer in giver.layers}
    giver.replicas = made = ExpertReplicas(pool, places, driver, layout, masters)
    return made


class ExpertReplicas:
    """Copies on the pool's peers of cold experts, whose device memory was given away; see
    `mirage.streaming.replicas.Replicas`.

    The constructor starts a thread, which owns `pool` and `places` until `close`: no other thread,
    the caller's included, may use them.
    """

    def __init__(
        self,
        pool: PoolClient,
        places: PoolMemory,
        driver: Driver,
        layout: ExpertLayout,
        masters: Mapping[int, int],
    ) -> None:
        """Start the thread; `masters` has the host addresses of layers' parameters, by the layers'
        index."""
        self._pool, self._places, self._layout, self._masters = pool, places, layout, masters
        pace = pool.bytes_per_s(Medium.PEER)
        self.stream = driver.stream_at(pace)
        self._fills = driver.stream_at(pace)
        self._read = driver.event()
        """Event after the last read of a copy whose address `lent` has yielded."""
        self._there = threading.Lock()
        """Lock of `_addresses`, held while reads of these addresses are enqueued."""
        self._addresses: dict[Expert, int] = {}
        self._held: dict[Expert, BlockPlace] = {}
        self._wishes: Sequence[ReplicaWish] = ()
        self._retry_at = 0.0
        self._later: dict[Expert, float] = {}
        """Time before which an expert is not asked for again, if it was refused for another reason
        than room."""
        self._ended = False
        self._wished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirage-replicas", daemon=True)
        self._thread.start()

    # -- the engine's thread ------------------------------------------------------------

    @contextmanager
    def lent(self) -> Iterator[Mapping[Expert, int]]:
        with self._there:
            try:
                yield self._addresses
            finally:  # what was enqueued before a failure is read as well
                self.stream.record(self._read)

    def wish(self, wishes: Sequence[ReplicaWish]) -> None:
        self._wishes = wishes
        self._wished.set()

    def close(self) -> None:
        """Leave the pool, once nothing is read any more."""
        self._ended = True
        self._wished.set()
        self._thread.join()
        self.stream.close()
        self._fills.close()
        self._places.close()

    # -- its own ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._ended or self._pool.lost):
                self._pool.wait(0.0 if self._follow() else LOOK_S)
                for request in self._pool.recalled():
                    self._give_up(_expert(request))
        except VmmError as error:
            logger.warning("experts are not kept on peers any more: %s", error)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Drop all copies and leave the pool, because recalls would stay unanswered."""
        with self._there:
            self._addresses.clear()
        with suppress(VmmError):  # of copies that have failed nothing is read any more
            self._read.wait()
        try:
            for place in self._held.values():
                self._places.let_go(place)
        finally:
            self._held.clear()
            self._places.close()
            self._pool.close()

    def _follow(self) -> bool:
        """Make one step towards the wished copies; False if there is none to make now. Without
        wishes it drops all copies and sleeps until there are some."""
        wished = self._wishes
        if not wished:
            self._rest()
            return False
        now = time.monotonic()
        self._later = {expert: until for expert, until in self._later.items() if until > now}
        wanted = missing(wished, self._held.keys() | self._later.keys())
        if wanted is None or now < self._retry_at:
            return False
        found = self._take(wanted.expert)
        if found is Lookup.ABSENT:
            return self._made_room(wished, wanted)
        if found is not Lookup.READY:
            self._later[wanted.expert] = now + RETRY_S
        return True

    def _made_room(self, wished: Sequence[ReplicaWish], wanted: ReplicaWish) -> bool:
        """Drop a less wanted copy; False if there is none, and then peers are asked again only
        after `RETRY_S` seconds."""
        weaker = gives_way(wished, self._held, wanted)
        if weaker is None:
            self._retry_at = time.monotonic() + RETRY_S
            return False
        self._give_up(weaker)
        return True

    def _rest(self) -> None:
        """Drop all copies, since none is wished, and sleep until one is."""
        for expert in list(self._held):
            self._give_up(expert)
        self._wished.wait()
        self._wished.clear()

    def _take(self, expert: Expert) -> Lookup:
        """Hold a copy, made now unless another engine of these weights has made it; return READY.

        ABSENT if there is no room for it, another value if it failed for another reason.
        """
        request, key = _names(expert)
        self._pool.seek(request, [key])
        found = self._answer(request, key)
        if found is Lookup.ABSENT:
            found = self._make(expert, request, key)
        if found is Lookup.READY and self._hold(expert, request, key):
            return found
        self._pool.leave(request)
        return found if found is Lookup.ABSENT else Lookup.UNKNOWN

    def _make(self, expert: Expert, request: str, key: Key) -> Lookup:
        place = self._pool.reserve([key]).get(key)
        if place is None:
            return Lookup.ABSENT
        if not self._filled(expert, place):
            self._pool.abandon([key])
            return Lookup.UNKNOWN
        self._pool.seek(request, [key])  # before it is anybody's to evict
        self._pool.commit([key])
        return self._answer(request, key)

    def _hold(self, expert: Expert, request: str, key: Key) -> bool:
        """Note place and address of the copy that the pool has under `key` for `request`, the name
        of the expert. False if this process cannot use the peer's memory, or the pool is gone."""
        try:
            (place,) = self._pool.places(request, [key])
            address = self._places.use(place)
        except KeyError:
            return False
        self._held[expert] = place
        with self._there:
            self._addresses[expert] = address
        return True

    def _filled(self, expert: Expert, place: BlockPlace) -> bool:
        """Copy an expert's parameters to a place; False if this process cannot use its memory."""
        try:
            target = self._places.use(place)
        except KeyError:
            return False
        try:
            with self._awaited():
                for offset, nbytes in self._layout.spans(expert.number):
                    self._fills.copy(target, self._masters[expert.layer] + offset, nbytes)
                    target += nbytes
        finally:
            self._places.let_go(place)
        return True

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Context after which the enqueued copies are awaited, also after a failure, because the
        place may belong to others afterwards."""
        try:
            yield
        finally:
            self._fills.synchronize()

    def _give_up(self, expert: Expert) -> None:
        """Drop a copy, once nothing reads it."""
        with self._there:
            self._addresses.pop(expert, None)
        place = self._held.pop(expert, None)
        if place is not None:
            self._read.wait()
            self._places.let_go(place)
        self._pool.leave(_names(expert)[0])

    def _answer(self, request: str, key: Key) -> Lookup:
        """Return the state of a key as the pool tells it; UNKNOWN or COMING if it does not answer
        in time."""
        until = time.monotonic() + ANSWER_S
        while (found := self._pool.found(request, key)) in (Lookup.UNKNOWN, Lookup.COMING):
            if (left := until - time.monotonic()) <= 0:
                break
            self._pool.wait(left)
        return found


def _names(expert: Expert) -> tuple[str, Key]:
    name = f"{expert.layer}.{expert.number}"
    return name, Key(name.encode())


def _expert(request: str) -> Expert:
    layer, number = request.split(".")
    return Expert(int(layer), int(number))
