"""Who may change what tiers hold, and what a body may say."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from mirage.config import PeerTier, Tiers
from mirage.serve.resizing import Resize, Resizing

pytestmark = pytest.mark.pure


class Request(SimpleNamespace):
    async def read(self) -> bytes:
        return bytes(self.body)


def answer(remote: str | None, body: bytes) -> tuple[int, Any, list[Resize]]:
    asked: list[Resize] = []

    async def resize(wanted: Resize) -> None:
        asked.append(wanted)

    registry: Any = SimpleNamespace(tiers=dict)
    request: Any = Request(remote=remote, body=body)
    response = asyncio.run(Resizing(registry, resize).handle(request))
    return response.status, json.loads(response.body or b"{}"), asked


@pytest.mark.parametrize("remote", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may(remote: str) -> None:
    status, _, asked = answer(remote, b'{"host": "2MiB", "peer": {"gpu1": 0}}')
    assert (status, asked) == (200, [Resize(host=2 << 20, peer={"gpu1": 0})])


@pytest.mark.parametrize("remote", ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1%eth0", "", None])
def test_no_other_may(remote: str | None) -> None:
    status, said, asked = answer(remote, b'{"host": 0}')
    assert (status, asked) == (403, [])
    assert "from this machine alone" in said["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"1",
        b"\xff",
        b'{"host": true}',
        b'{"host": 1e30}',
        b'{"host": -1}',
        b'{"peer": 5}',
        b'{"peer": {"a\\nb": -1}}',
        b'{"a\\nb": 1}',
    ],
)
def test_a_body_that_says_nothing_of_use(body: bytes) -> None:
    status, said, asked = answer("127.0.0.1", body)
    assert (status, asked) == (400, [])
    message = said["error"]["message"]
    assert message.isprintable() and "Input" not in message and "valid " not in message


def test_peers_need_host_memory_below_them() -> None:
    with pytest.raises(ValueError, match="peer needs a host pool below it"):
        Tiers(peer=PeerTier(devices={"gpu1": 1}))
    for devices in ({}, {"": 1}, {"a b": 1}, {"gpu1": 0}):
        with pytest.raises(ValueError):
            PeerTier(devices=devices)
    assert PeerTier(devices={"a": "1KiB", "b": 24}).bytes == 1048
