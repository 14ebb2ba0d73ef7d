"""Clients that send heads and bodies slowly or not at all, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from clients import connected, counted, limited, one_answer, refused
from test_router import Site, run

pytestmark = pytest.mark.e2e

HEAD = b"GET /live HTTP/1.1\r\nHost: x\r\n"
GET = HEAD + b"\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
BODY = b'{"model": "a"}'
LATE = "mirage_http_slow_clients_total"
HEAD_S = limited(head_s=0.3)
BODY_S = limited(body_s=0.3)


@pytest.fixture(autouse=True)
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.serve.clients.connection.GRACE_S", 0.1)


def test_a_head_that_does_not_come_is_a_408(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        status, error = await refused(await connected(site.url, HEAD + b"X-More: "))
        assert (status, error["code"]) == (408, 408)
        assert error["message"] == "the request's head took more than 0.3 s: send it at once"
        assert await counted(site.http, site.url, LATE) == {'part="head"': 1.0, 'part="body"': 0.0}
        codes = await counted(site.http, site.url, "mirage_http_requests_total")
        assert codes == {'code="408",tenant=""': 1.0}

    run(tmp_path, scenario, HEAD_S)


def test_a_head_that_comes_letter_by_letter_is_late_as_well(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await connected(site.url, HEAD + b"X-More: ")
        answer = asyncio.create_task(refused((reader, writer)))
        while not answer.done():
            if not writer.is_closing():
                writer.write(b"a")
            await asyncio.sleep(0.02)
        assert (await answer)[0] == 408

    run(tmp_path, scenario, HEAD_S)


def test_who_still_sends_can_read_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.serve.clients.connection.LINGER_S", 10.0)

    async def scenario(site: Site) -> None:
        reader, writer = await connected(site.url, HEAD + b"X-More: ")
        while not (await counted(site.http, site.url, LATE))['part="head"']:
            await asyncio.sleep(0.05)
        for _ in range(5):
            writer.write(b"a")
            await asyncio.sleep(0.05)
        assert (await refused((reader, writer)))[0] == 408

    run(tmp_path, scenario, HEAD_S)


def test_who_sends_nothing_is_closed_without_a_word(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await connected(site.url)
        assert await reader.read() == b""
        writer.close()

    run(tmp_path, scenario, HEAD_S)


def test_the_time_of_a_head_begins_with_its_first_byte(tmp_path: Path) -> None:
    """A kept connection is idle for longer than a request's head may take, and is then used. The
    time limit starts with the first byte of the next head.
    """

    async def scenario(site: Site) -> None:
        reader, writer = await connected(site.url, GET)
        assert (await one_answer(reader))[0] == 200
        assert (await refused(await connected(site.url, b"G")))[0] == 408  # so long it was idle
        writer.write(GET)
        assert (await one_answer(reader))[0] == 200
        writer.write(b"G")
        assert (await refused((reader, writer)))[0] == 408

    run(tmp_path, scenario, HEAD_S)


def test_the_rest_of_a_body_that_was_answered_before_is_no_head(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        nowhere = POST.replace(b"completions", b"nowhere") + b"Content-Length: 3\r\n\r\n"
        reader, writer = await connected(site.url, nowhere + b"1")
        assert (await one_answer(reader))[0] == 404
        writer.write(b"2")
        assert (await refused(await connected(site.url, b"G")))[0] == 408
        writer.write(b"3" + GET)
        assert (await one_answer(reader))[0] == 200
        writer.close()

    run(tmp_path, scenario, HEAD_S)


def test_a_connection_is_not_kept_for_ever(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await connected(site.url, GET)
        assert (await one_answer(reader))[0] == 200
        assert await reader.read() == b""
        writer.close()

    run(tmp_path, scenario, limited(idle_s=0.3))


@pytest.mark.parametrize(
    "half",
    [
        b"Content-Length: 14\r\n\r\n" + BODY[:-1],
        b"Content-Length: 60000000\r\n\r\n" + BODY,  # what is announced buys no time
        b"Transfer-Encoding: chunked\r\n\r\ne\r\n" + BODY + b"\r\n",
    ],
    ids=["announced", "much announced", "chunks"],
)
def test_a_body_that_does_not_come_is_a_408(
    tmp_path: Path, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site) -> None:
        reader, writer = await connected(site.url, POST + half)
        status, headers, body = await one_answer(reader)
        assert (status, headers["connection"]) == (408, "close")
        assert b"the body took more than 0.3 s and 1 s for each 65,536 bytes" in body
        writer.close()
        assert await counted(site.http, site.url, LATE) == {'part="head"': 0.0, 'part="body"': 1.0}
        assert await counted(site.http, site.url, "mirage_http_body_bytes") == {"": 0.0}
        assert not site.a.seen

    run(tmp_path, scenario, BODY_S)


def test_a_late_body_of_messages_is_told_in_anthropics_form(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        head = POST.replace(b"completions", b"messages") + b"Content-Length: 9\r\n\r\n"
        reader, writer = await connected(site.url, head)
        status, _, body = await one_answer(reader)
        assert status == 408 and body.startswith(b'{"type": "error", "error": {')
        writer.close()

    run(tmp_path, scenario, BODY_S)


def test_bytes_that_come_buy_time(tmp_path: Path) -> None:
    """A body may take 0.3 s and a second more for each byte. Twenty bytes sent one by one take
    longer than 0.3 s, and the request is answered.
    """

    async def scenario(site: Site) -> None:
        data = BODY + b" " * 6
        head = POST + f"Content-Length: {len(data)}\r\n\r\n".encode()
        reader, writer = await connected(site.url, head)
        for n in range(20):
            writer.write(data[n : n + 1])
            await asyncio.sleep(0.05)
        assert (await one_answer(reader))[0] == 200
        writer.close()

    run(tmp_path, scenario, limited(body_s=0.3, body_rate=1))


async def many_are_slow(site: Site, count: int) -> None:
    """Send `count` half heads and as many half bodies. All are answered with 408, while other
    requests are served meanwhile.
    """
    halves = [HEAD + b"X-More: ", POST + b"Content-Length: 14\r\n\r\n{"]
    slow = await asyncio.gather(*(connected(site.url, half) for half in halves * count))
    asked = 0
    ends = asyncio.gather(*(one_answer(reader) for reader, _ in slow))
    while not ends.done() or asked < 50:
        async with site.post({"model": "a"}) as answer:
            assert answer.status == 200
        asked += 1
    assert {status for status, *_ in await ends} == {408}
    for _, writer in slow:
        writer.close()
    late = {'part="head"': float(count), 'part="body"': float(count)}
    assert await counted(site.http, site.url, LATE) == late
    codes = await counted(site.http, site.url, "mirage_http_requests_total")
    assert codes == {'code="408",tenant=""': 2.0 * count, 'code="200",tenant="a"': float(asked)}
    while (await counted(site.http, site.url, "mirage_http_connections"))[""] > 1:
        await asyncio.sleep(0.05)


SLOW = limited(head_s=2.0, body_s=2.0)


def test_slow_clients_keep_nobody_else_waiting(tmp_path: Path) -> None:
    run(tmp_path, lambda site: many_are_slow(site, 20), SLOW)


@pytest.mark.slow
def test_five_hundred_slow_clients_keep_nobody_else_waiting(tmp_path: Path) -> None:
    run(tmp_path, lambda site: many_are_slow(site, 250), SLOW)
