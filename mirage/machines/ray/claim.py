"""Claim on the head: a key in the Redis that has its tables. Only this module imports its client.

One machine at a time holds the claim. Another machine may take it once it is given up, or has
lapsed: `CLAIM_S` after its last renewal.
"""

from __future__ import annotations

import time
from contextlib import suppress

from redis import Redis
from redis.exceptions import RedisError

from mirage.errors import CommandFailed
from mirage.machines.ray.head import HeadFound
from mirage.machines.ray.store import NodeStore

CLAIM_S = 15.0
"""Seconds from the last renewal of a claim until it lapses."""
RENEWED_S = 10.0
"""Seconds without a renewal after which Ray's head is ended on this machine: before the claim
lapses and another machine begins a head.
"""
LOOK_S = 1.0
ANSWER_S = 2.0
"""Longest wait for a connection to Redis, or for an answer of Redis, in seconds."""


class ClaimedHead:
    """The head whose address is the value of the claim, a key in the Redis that has its tables."""

    def __init__(self, store: NodeStore, cluster: str, own: str | None) -> None:
        """`cluster` names the cluster's tables in the Redis, and thereby the claim's key.

        `own` is the address that the head would have on this machine; None if this machine may not
        be the head.
        """
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
        """Head for the next start of Ray: the machine that holds the claim. This machine takes a
        free claim if it may be the head.

        Raises `CommandFailed` if no machine holds it, and on any error of Redis.
        """
        try:
            has = self._claim()
        except RedisError as error:
            raise CommandFailed(f"{self._where} does not answer ({error})") from None
        if has is None:
            raise CommandFailed(f"no head has its tables in {self._where}: run mirage node start")
        self._renewed = self._looked = time.monotonic()
        self._found = HeadFound(has, has == self._own)
        return self._found

    def _claim(self) -> str | None:
        """Take a free claim if this machine may be the head; renew this machine's own claim.

        Returns the address that holds the claim; None if no machine holds it. Raises `RedisError`
        if Redis does not answer, or refuses.
        """
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
        """False once Ray has to be started anew: another machine holds the claim, none does and
        this one may be the head, or this one could not renew its own claim in time.

        Redis is asked every `LOOK_S` seconds.
        """
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
        """Delete this machine's claim, if it has one, when Ray has ended here for good: another
        machine may take it immediately."""
        with suppress(RedisError):
            if self._found.is_here and self._holder() == self._own:
                self._redis.delete(self._key)
        self._redis.close()


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
