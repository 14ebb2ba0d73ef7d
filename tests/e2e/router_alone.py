"""A router in a process of its own before one engine, until stdin ends: SOCKET BODY_BYTES."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from attending import nobody
from clients import limited

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.registry import Registry, TenantServer
from mirage.serve.router import Router


async def main(socket: Path, body_bytes: int) -> None:
    backend = TenantServer("a", socket, 256, LifeState.READY)
    registry = Registry(Policy.MIRAGE, 1 << 30, {"a": backend})
    router = Router(registry, nobody(), http=limited(body_bytes=body_bytes))
    print(await router.start("127.0.0.1", 0), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await router.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
