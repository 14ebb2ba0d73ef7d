"""Watch over several devices: each line gets the name of its device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

import aiohttp
import msgspec
from aiohttp import web

from mirage.serve.admin.forms import StateChange, TenantsTold
from mirage.serve.apply.forms import ABSENT
from mirage.serve.machine.calls import DeviceAway, DeviceCalls, DeviceRefused
from mirage.serve.openai import ApiError

AGAIN_S = 0.5
"""Seconds between two attempts to watch a device whose server is away."""
FIRST_S = 5.0
"""Most seconds to wait at the start until all devices answer."""
FOREVER = aiohttp.ClientTimeout(None)


class MachineWatchers:
    """Serves watches. When a device's server comes back, its lines first tell all its tenants'
    states.
    """

    def __init__(self, devices: Mapping[str, DeviceCalls]) -> None:
        self._devices = devices

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve a client until it leaves. The answer begins once all devices answer, or after
        `FIRST_S`.

        Raises `ApiError` if devices are on other machines: their sockets are there.
        """
        if any(one.socket is None for one in self._devices.values()):
            raise ApiError(409, "nobody watches devices of other machines: ask again instead")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        watches = [_DeviceWatch(one, response) for one in self._devices.values()]
        tasks = [asyncio.create_task(one.keep()) for one in watches]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    for one in watches:
                        await one.begun.wait()
            await response.prepare(request)
            for one in watches:
                one.tells.set()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return response


class _ClientGone(Exception):
    """The client of the watch has gone."""


class _DeviceWatch:
    """Part of a watch that covers one device."""

    def __init__(self, calls: DeviceCalls, response: web.StreamResponse) -> None:
        self._calls, self._response = calls, response
        self._seen: TenantsTold | None = None
        """Tenants when the device's watch began last; None before."""
        self._revision = 0
        """Highest revision told so far, since a restarted server begins at 0 again."""
        self.begun, self.tells = asyncio.Event(), asyncio.Event()
        """`begun` is set once the device's watch has begun, or its server was found away; `tells`
        once lines may be written to the response.
        """

    async def keep(self) -> None:
        """Watch the device until the client has gone."""
        while True:
            try:
                await self._tell()
            except (aiohttp.ClientError, DeviceAway, DeviceRefused, OSError):
                pass
            except _ClientGone:
                return
            self.begun.set()
            await asyncio.sleep(AGAIN_S)

    async def _tell(self) -> None:
        """Pass on the lines of one connection, until the device's server ends or an error is
        raised.
        """
        async with self._calls.session() as http, http.get("/watch", timeout=FOREVER) as told:
            now, before = await self._calls.tenants(), self._seen
            self._seen = now
            self._revision = max(self._revision, now.revision)
            self.begun.set()
            await self.tells.wait()
            for change in _since(before, now) if before is not None else ():
                await self._write(change)
            async for line in told.content:
                await self._write(msgspec.json.decode(line, type=StateChange))

    async def _write(self, change: StateChange) -> None:
        """Write a line to the client. Raises `_ClientGone`."""
        self._revision = max(self._revision, change.revision)
        line = msgspec.structs.replace(change, device=self._calls.device, revision=self._revision)
        try:
            await self._response.write(msgspec.json.encode(line) + b"\n")
        except ConnectionError:
            raise _ClientGone from None


def _since(before: TenantsTold, now: TenantsTold) -> list[StateChange]:
    """Lines about all tenants after an interruption, also about those that have gone."""
    there = {one.name for one in now.tenants}
    gone = [one.name for one in before.tenants if one.name not in there]
    told = [(one.name, one.state, one.reason, False) for one in now.tenants]
    told += [(name, ABSENT, "", True) for name in gone]
    return [
        StateChange(
            t=time.time(),
            tenant=name,
            before=state,
            state=state,
            revision=now.revision,
            reason=reason,
            removed=removed,
        )
        for name, state, reason, removed in told
    ]
