"""Keys, certificate and configuration, read again while a server runs."""

from __future__ import annotations

import asyncio

from mirage.config import ConfigError
from mirage.errors import CommandFailed, InputRefused
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.apply.appliers import AppliesConfigs
from mirage.serve.clients.certificate import check_tls
from mirage.serve.logs.progress import say
from mirage.serve.routing.desk import RouterDesk


class ReadAgain:
    """Reload of the server's files while it runs: keys, configuration and certificate."""

    def __init__(self, keys: ServerKeys, desk: RouterDesk, applier: AppliesConfigs) -> None:
        self._keys, self._desk, self._applier = keys, desk, applier

    async def after_hangup(self) -> None:
        """Read all files again, and print the results; after a mistake in one its old content stays
        in use.
        """
        await self._keys_again()
        await self._file_again()
        await self._certificate_again()

    async def keys(self) -> str:
        """Read the keys again; return a line about them, once the router uses them.

        Raises `InputRefused` if they cannot be read, or this server asks for no keys; the old ones
        stay.
        """
        line = await self._keys.again()
        self._desk.holds(self._keys.table)
        await self._desk.seen()
        return line

    async def ordered(self, keys: tuple[AccessKey, ...]) -> None:
        """Use these keys, which another process sent, and let the router read its certificate
        again. Returns once the router uses both. Raises `InputRefused` if this server has keys of
        its own.
        """
        self._keys.ordered(keys)
        self._desk.holds(self._keys.table)
        self._desk.renews()
        await self._desk.seen()

    async def _keys_again(self) -> None:
        if self._keys.table.keys is None:
            return
        try:
            say(f"SIGHUP: {await self.keys()}")
        except InputRefused as error:
            say(f"SIGHUP: the keys stay as they were: {error}")

    async def _certificate_again(self) -> None:
        http = self._applier.http  # the file may have named another certificate
        if http.tls is None:
            return
        try:
            await asyncio.to_thread(check_tls, http)
        except ConfigError as error:
            say(f"SIGHUP: the certificate stays as it was: {error}")
            return
        self._desk.renews()
        await self._desk.seen()
        say(f"SIGHUP: certificate: {http.tls.certificate}")

    async def _file_again(self) -> None:
        source = self._applier.source
        try:
            told = await self._applier.apply(lambda before: source.written())
        except (InputRefused, CommandFailed) as error:
            say(f"SIGHUP: nothing is applied: {error}")
        else:
            say(f"SIGHUP: {source.path}: {'; '.join(told.lines)}")
