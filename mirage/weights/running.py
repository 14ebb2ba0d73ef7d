"""A server of weights that runs until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from mirage.weights.problems import WeightsFailed
from mirage.weights.secret import check_address
from mirage.weights.sending import WeightSender
from mirage.weights.store import WeightStore


async def serve_weights(
    store: WeightStore,
    secret: str,
    host: str,
    port: int,
    bytes_per_s: float | None,
    told: Callable[[str], None],
) -> None:
    """Serve a store until SIGINT or SIGTERM; `told` is called with the address once it listens.

    Raises `WeightsRefused` unless `host` is an address that the Internet cannot reach, and
    `WeightsFailed` if this process cannot listen there.
    """
    check_address(host)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with sending(WeightSender(store, secret, bytes_per_s), host, port) as url:
        told(url)
        await ended.wait()


@asynccontextmanager
async def sending(sender: WeightSender, host: str, port: int) -> AsyncIterator[str]:
    """Let `sender` listen inside the block; yields its address. Raises `WeightsFailed` if this
    process cannot listen there.
    """
    app = sender.app()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    assert runner.server is not None
    make = runner.server

    def comes() -> RequestHandler:
        connection = make()
        sender.strangers.come(connection)
        return connection

    try:
        try:
            server = await asyncio.get_running_loop().create_server(comes, host, port)
        except OSError as error:
            raise WeightsFailed(f"{host}:{port}: {error.strerror or error}") from None
        shown = f"[{host}]" if ":" in host else host
        try:
            yield f"http://{shown}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
    finally:
        await runner.cleanup()
