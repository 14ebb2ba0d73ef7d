"""Address of the Redis server that keeps the tables of a head."""

from __future__ import annotations

import pytest

from mirage.errors import InputRefused
from mirage.machines.ray.store import NodeStore

pytestmark = pytest.mark.pure


def test_an_address_has_a_host_and_may_have_more() -> None:
    plain = NodeStore.of("redis://10.0.0.3")
    assert (plain.address, plain.words()) == ("redis://10.0.0.3:6379", [])
    whole = NodeStore.of("rediss://me:a%20word@[fd00::3]:7000/")
    assert whole.address == "rediss://[fd00::3]:7000"
    assert whole.words() == ["--redis-username", "me", "--redis-password", "a word"]


@pytest.mark.parametrize(
    "told", ["", "10.0.0.3:6379", "http://10.0.0.3", "redis://", "redis://h:x", "redis://h/1"]
)
def test_what_is_no_address_of_redis_is_refused(told: str) -> None:
    with pytest.raises(InputRefused, match="redis://HOST:PORT"):
        NodeStore.of(told)
