"""HTTP on a Unix socket that only this user can open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from aiohttp import web

from mirage.serve.http.error_answers import AnsweringRunner

SHUTDOWN_S = 1.0
MODE = 0o600


class PrivateSite:
    """An aiohttp application that is served at a Unix socket. `stop` ends the service."""

    def __init__(self) -> None:
        self._runner: AnsweringRunner | None = None
        self._site: web.UnixSite | None = None
        self._path = Path()

    async def start(self, app: web.Application, path: Path) -> None:
        """Serve `app` at `path`. Raises `OSError` if no socket can be made there."""
        self._path = path
        self._runner = AnsweringRunner(app, lambda status: None, SHUTDOWN_S)
        await self._runner.setup()
        await self.listen()

    async def listen(self) -> bool:
        """Listen at a new socket file; false after `stop`. Raises `OSError` if no socket can be
        made.
        """
        if self._runner is None:
            return False
        if self._site is not None:
            with suppress(OSError):
                await self._site.stop()
        self._site = web.UnixSite(self._runner, self._path)
        await self._site.start()
        self._path.chmod(MODE)
        return True

    async def stop(self) -> None:
        """Stop accepting connections, and close open ones, after `SHUTDOWN_S` seconds at the
        latest. Idempotent.
        """
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
