"""A server of weights that runs until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from aiohttp import web

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
    """Send what a store has until SIGINT or SIGTERM; `told` gets the address once it listens.

    Raises `WeightsRefused` for an address that strangers reach, `WeightsFailed` for one in use.
    """
    check_address(host)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    app = WeightSender(store, secret, bytes_per_s).app()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise WeightsFailed(f"{host}:{port}: {error.strerror or error}") from None
        shown = f"[{host}]" if ":" in host else host
        told(f"http://{shown}:{runner.addresses[0][1]}")
        await ended.wait()
    finally:
        await runner.cleanup()
