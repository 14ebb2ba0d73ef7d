"""A fake engine that reads HTTP itself, strictly, and keeps the requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

ANSWER = b'{"choices": []}'
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")


@dataclass
class RawEngine:
    """Fake engine that records the `prompts` of requests in order of arrival, and their
    `violations` of HTTP.
    """

    prompts: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on a connection one after the other, because a router keeps its
        connections.
        """
        try:
            while await self._one(reader, writer):
                pass
        except asyncio.IncompleteReadError as end:
            if end.partial:
                self.violations.append(f"no request: {end.partial[:80]!r}")
        except ConnectionError:
            pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read and answer one request. False if it is not known where the next one begins."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *headers = head[:-4].split(b"\r\n")
        if not re.fullmatch(rb"POST /v1/[!-~]+ HTTP/1\.1", line):
            self.violations.append(f"line {line!r}")
        if wrong := [each for each in headers if not TOKEN.fullmatch(each)]:
            self.violations.append(f"headers {wrong!r}")
        names = [each.partition(b":")[0].lower() for each in headers]
        if names.count(b"content-length") != 1 or b"transfer-encoding" in names:
            self.violations.append(f"no one end: {names!r}")
            return False
        length = int(headers[names.index(b"content-length")].partition(b":")[2])
        self.prompts.append(json.loads(await reader.readexactly(length))["prompt"])
        told = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
        writer.write(b"HTTP/1.1 200 OK\r\n" + told + ANSWER)
        return True


@contextlib.asynccontextmanager
async def raw_engine(path: Path) -> AsyncIterator[RawEngine]:
    """Run a `RawEngine` that listens at the socket `path` while the block runs."""
    engine = RawEngine()
    server = await asyncio.start_unix_server(engine.serve, path)
    try:
        yield engine
    finally:
        server.close()
