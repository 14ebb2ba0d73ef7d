"""Keys and the certificate of the router, read again while several devices are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mirage.config import HttpSection
from mirage.errors import InputRefused
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.clients.certificate import check_tls
from mirage.serve.routing.desk import RouterDesk


class ReadAgain:
    """Has the router do as files say now."""

    def __init__(
        self, http: HttpSection, keys: ServerKeys, desk: RouterDesk, say: Callable[[str], None]
    ) -> None:
        self._http, self._keys, self._desk, self._say = http, keys, desk, say

    async def after_hangup(self) -> None:
        """Read both again, and say so; a mistake leaves them as they were."""
        try:
            if self._keys.table.keys is not None:
                self._say(f"SIGHUP: {await self.keys()}")
            if (tls := self._http.tls) is not None:
                await asyncio.to_thread(check_tls, self._http)
                self._desk.renews()
                await self._desk.seen()
                self._say(f"SIGHUP: certificate: {tls.certificate}")
        except InputRefused as error:
            self._say(f"SIGHUP: keys or certificate stay as they were: {error}")

    async def keys(self) -> str:
        """Have the keys that their source has now; a line about them. Raises `InputRefused`."""
        line = await self._keys.again()
        self._desk.holds(self._keys.table)
        await self._desk.seen()
        return line
