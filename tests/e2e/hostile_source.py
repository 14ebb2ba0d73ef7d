"""A server of weights whose answers to some kinds of requests a test replaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from mirage.weights.running import sending
from mirage.weights.sending import WeightSender
from mirage.weights.store import WeightStore

SECRET = "a secret of this cluster"
Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]
"""Writes an answer; it is given the right one, head and body."""
LIST, MANIFEST, HAVE, FILE = "list", "manifest", "have", "file"


def kind_of(path: str) -> str:
    parts = path.strip("/").split("/")
    return (LIST, MANIFEST, HAVE, FILE)[min(len(parts), 4) - 1]


@asynccontextmanager
async def hostile(url: str, answers: Mapping[str, Answer]) -> AsyncIterator[str]:
    """Address of a server that passes on the answers of the server at `url`. For the kinds of
    requests in `answers` it calls these handlers instead.
    """
    host, port = url.removeprefix("http://").split(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            asked = head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            there, back = await asyncio.open_connection(host, int(port))
            back.write(asked)
            right = await there.read(-1)
            back.close()
            answer = answers.get(kind_of(head.split()[1].decode()))
            if answer is None:
                writer.write(right)
            else:
                await answer(writer, right)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def honest(store: WeightStore) -> AsyncIterator[str]:
    """Address of a right server of weights from a store, in this process."""
    async with sending(WeightSender(store, SECRET), "127.0.0.1", 0) as url:
        yield url


def split(right: bytes) -> tuple[bytes, bytes]:
    """Head and body of an HTTP answer."""
    head, _, body = right.partition(b"\r\n\r\n")
    return head, body


def instead(body: bytes, status: str = "200 OK", *headers: str) -> Answer:
    """Handler that gives the same answer to every request."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]

    async def answer(writer: asyncio.StreamWriter, right: bytes) -> None:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    return answer


def trickles(after: Callable[[bytes], int]) -> Answer:
    """Handler that sends the right answer one byte at a time from the byte number `after` gives, so
    slowly that it does not end in time.
    """

    async def answer(writer: asyncio.StreamWriter, right: bytes) -> None:
        begun = after(right)
        writer.write(right[:begun])
        for byte in right[begun:]:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)

    return answer


def of_the_head(right: bytes) -> int:
    """Index in an answer from which `trickles` is slow: its status line."""
    return 5


def of_the_body(right: bytes) -> int:
    """Index in an answer from which `trickles` is slow: its body."""
    return len(split(right)[0]) + 4 + 1


async def never_ends(writer: asyncio.StreamWriter, right: bytes) -> None:
    """Handler whose answer has a body without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n[")
    while True:
        writer.write(b" " * 2**20)
        await writer.drain()
