"""A router in its own process, for one engine, until stdin ends: SOCKET BODY_BYTES."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from clients import limited
from routed import routed

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.registry.registry import Registry, TenantServer


async def main(socket: Path, body_bytes: int) -> None:
    backend = TenantServer("a", socket, 256, LifeState.READY)
    registry = Registry(Policy.MIRAGE, 1 << 30, {"a": backend})
    async with routed(socket.parent, registry, http=limited(body_bytes=body_bytes)) as one:
        print(one.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
