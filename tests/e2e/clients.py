"""Raw connections to a router, its limits for clients, and its counts of them."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
from yarl import URL

from mirage.config import HttpSection

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def limited(**limits: object) -> HttpSection:
    """Section `http` with limits that a file could not have, such as a budget for less than one
    body.
    """
    return HttpSection().model_copy(update=limits)


async def connected(url: str, data: bytes = b"", peer: str = "127.0.0.1") -> Connection:
    """Connection from the local address `peer`, over which `data` was sent."""
    address = URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port, local_addr=(peer, 0))
    writer.write(data)
    return reader, writer


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers with lower-case names, and body of the next answer, which has a
    Content-Length.
    """
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(first.split()[1]), headers, body


async def refused(connection: Connection) -> tuple[int, dict[str, Any]]:
    """Status and error of an answer in OpenAI's form, after which the router closes
    the connection.
    """
    reader, writer = connection
    status, headers, body = await one_answer(reader)
    assert headers["connection"] == "close" and headers["server"] == "mirage"
    assert headers["content-type"].startswith("application/json")
    assert headers["x-request-id"]
    assert await reader.read() == b""
    writer.close()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error


async def counted(http: aiohttp.ClientSession, url: str, name: str) -> dict[str, float]:
    """Values of the metric `name` by their labels, such as `part="head"`."""
    async with http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.M)
    return {labels: float(value) for labels, value in found}
