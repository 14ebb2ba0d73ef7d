"""The machine that has the head: a fixed one, or the one that Redis has the claim of.

One machine at a time has the claim. It is over some seconds after its last renewal, and then
another machine takes it, with the head's tables in the same Redis.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from mirage.errors import CommandFailed
from mirage.machines.ray.store import NodeStore

CLAIM_S = 15.0
"""Seconds after the last renewal for which a claim holds."""
RENEWED_S = 10.0
"""Seconds after the last renewal within which the head is told to end: nobody else begins then."""
LOOK_S = 1.0
ANSWER_S = 2.0
"""Seconds for an answer of Redis."""


class HeadFound(NamedTuple):
    """The head that Ray is started for."""

    address: str
    is_here: bool
    """True if this machine is the head."""


class HeadPlace(Protocol):
    """Place of the head, asked before each start of Ray and while it runs."""

    def begin(self) -> HeadFound:
        """Head for the next start. Raises `CommandFailed` if there is none."""

    def stays(self) -> bool:
        """False once Ray has to be started anew, since the head is elsewhere."""

    def end(self) -> None:
        """Ray has ended here for good."""


class FixedHead:
    """A head that stays where it is."""

    def __init__(self, address: str, *, is_here: bool) -> None:
        self._found = HeadFound(address, is_here)

    def begin(self) -> HeadFound:
        """See `HeadPlace`."""
        return self._found

    def stays(self) -> bool:
        """See `HeadPlace`."""
        return True

    def end(self) -> None:
        """See `HeadPlace`."""


class ClaimedHead:
    """The head whose address is in the Redis that has its tables."""

    def __init__(self, store: NodeStore, cluster: str, own: str | None) -> None:
        """`cluster` is a name for the cluster's tables alone.

        `own` is the address that the head has on this machine; None if it may not be here.
        Raises `CommandFailed` if Redis has no client here.
        """
        try:
            from redis import Redis
        except ImportError:
            raise CommandFailed("--store needs redis: pip install '.[cluster]'") from None
        self._redis = Redis.from_url(
            store.address,
            username=store.user or None,
            password=store.password or None,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            decode_responses=True,
        )
        self._key, self._own, self._where = f"mirage-head:{cluster}", own, store.address
        self._found = HeadFound("", False)
        self._renewed = self._looked = 0.0

    def begin(self) -> HeadFound:
        """See `HeadPlace`."""
        from redis.exceptions import RedisError

        try:
            has = self._claim()
        except RedisError as error:
            raise CommandFailed(f"{self._where} does not answer ({error})") from None
        if has is None:
            raise CommandFailed(f"no head has its tables in {self._where}: mirage node start")
        self._renewed = self._looked = time.monotonic()
        self._found = HeadFound(has, has == self._own)
        return self._found

    def _claim(self) -> str | None:
        """Address that has the claim, be it this one from now on. Raises `RedisError`."""
        if self._own is not None:
            self._redis.set(self._key, self._own, nx=True, px=_ms(CLAIM_S))
        has = self._holder()
        if has is not None and has == self._own:
            self._redis.pexpire(self._key, _ms(CLAIM_S))
        return has

    def _holder(self) -> str | None:
        has = self._redis.get(self._key)
        return has if isinstance(has, str) else None

    def stays(self) -> bool:
        """See `HeadPlace`."""
        from redis.exceptions import RedisError

        if (now := time.monotonic()) - self._looked < LOOK_S:
            return True
        self._looked = now
        try:
            has = self._claim() if self._found.is_here else self._holder()
        except RedisError:  # who is no head goes on with the one that it knows
            return not self._found.is_here or now - self._renewed < RENEWED_S
        self._renewed = now
        return has == self._found.address or (has is None and self._own is None)

    def end(self) -> None:
        """See `HeadPlace`: another machine may take the claim at once."""
        from redis.exceptions import RedisError

        with suppress(RedisError):
            if self._found.is_here and self._holder() == self._own:
                self._redis.delete(self._key)
        self._redis.close()


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
