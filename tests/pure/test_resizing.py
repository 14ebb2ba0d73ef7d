"""Clients that may change the sizes of tiers while the server runs, and their bodies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict

from mirage.config import PeerTier, TiersSection
from mirage.serve.api.openai import ApiError
from mirage.serve.routed.resizing import Resize, check_resizer, resize_in

pytestmark = pytest.mark.pure


SENT = {"Host": "localhost:8000"}


def answer(
    remote: str | None,
    body: bytes,
    headers: Any = SENT,
    content_type: str = "application/json",
    listening: str = "",
    version: tuple[int, int] = (1, 1),
) -> tuple[int, Any, list[Resize]]:
    request: Any = SimpleNamespace(
        remote=remote,
        headers=CIMultiDict(headers),
        content_type=content_type,
        version=version,
    )
    try:
        check_resizer(request, listening)
        return 200, {}, [resize_in(body)]
    except ApiError as error:
        return error.status, error.body(), []


@pytest.mark.parametrize("remote", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may(remote: str) -> None:
    status, _, asked = answer(remote, b'{"host": "2MiB", "peer": {"gpu1": 0}}')
    assert (status, asked) == (200, [Resize(host=2 << 20, peer={"gpu1": 0})])


@pytest.mark.parametrize("remote", ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1%eth0", "", None])
def test_no_other_may(remote: str | None) -> None:
    status, said, asked = answer(remote, b'{"host": 0}')
    assert (status, asked) == (403, [])
    assert "can be changed only from this machine" in said["error"]["message"]


@pytest.mark.parametrize(
    "header",
    [
        *("Forwarded", "X-Forwarded-For", "x-forwarded-host", "X-Forwarded-Proto", "Via"),
        *("X-Real-IP", "x-forwarded-anything"),
        *("X-Envoy-Peer-Metadata", "X-Original-URI", "Max-Forwards"),
    ],
)
def test_a_proxy_on_this_machine_may_not(header: str) -> None:
    status, said, asked = answer("127.0.0.1", b'{"host": 0}', SENT | {header: "10.0.0.7"})
    assert (status, asked) == (403, [])
    assert f"{header} says that a proxy" in said["error"]["message"]


def test_a_proxy_that_adds_no_header_may_not() -> None:
    """A request as nginx's `proxy_pass` sends it by default, with HTTP/1.0 and the server's own
    name as Host, is refused: a proxy may stand for any client.
    """
    status, said, asked = answer("127.0.0.1", b'{"host": 0}', version=(1, 0))
    assert (status, asked) == (403, [])
    assert "HTTP/1.0 says that a proxy" in said["error"]["message"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("origin", "http://localhost:8000"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_a_page_in_a_browser_may_not(header: str, value: str) -> None:
    status, said, asked = answer("::1", b'{"host": 0}', SENT | {header: value})
    assert (status, asked) == (403, [])
    assert f"{header} says that a page in a browser" in said["error"]["message"]


@pytest.mark.parametrize("value", ["none", "same-origin"])
def test_what_a_browser_sends_of_itself_may(value: str) -> None:
    assert answer("::1", b"{}", SENT | {"Sec-Fetch-Site": value})[0] == 200


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["localhost"], 200),
        (["LOCALHOST:8000"], 200),
        (["127.0.0.1:8000"], 200),
        (["[::1]:8000"], 200),
        (["box:8000"], 200),
        (["evil.example:8000"], 403),
        (["127.0.0.1.evil.example"], 403),
        (["localhost.evil.example"], 403),
        (["127.0.0.1@evil.example"], 403),
        (["evil.example@127.0.0.1"], 403),
        (["10.0.0.7"], 403),
        (["[::1"], 403),
        ([""], 403),
        ([], 403),
        (["localhost", "evil.example"], 403),
    ],
)
def test_a_name_that_was_bound_anew_may_not(hosts: list[str], status: int) -> None:
    headers = [("Host", host) for host in hosts]
    found, said, _ = answer("127.0.0.1", b"{}", headers, listening="Box")
    assert found == status, said


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "text/json"],
)
def test_what_a_page_can_send_without_asking_is_no_body(content_type: str) -> None:
    status, said, asked = answer("127.0.0.1", b'{"host": 0}', content_type=content_type)
    assert (status, asked) == (415, [])
    assert "send application/json" in said["error"]["message"]


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
        TiersSection(peer=PeerTier(devices={"gpu1": 1}))
    for devices in ({}, {"": 1}, {"a b": 1}, {"gpu1": 0}):
        with pytest.raises(ValueError):
            PeerTier(devices=devices)
    assert PeerTier(devices={"a": "1KiB", "b": 24}).bytes == 1048
