"""Stream of state changes on several devices, for operators; each line names its device."""

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

ASK_S = 1.0
"""Seconds between two questions to a device of another machine."""
AGAIN_S = 0.5
"""Seconds between two attempts to watch a device whose server is away."""
FIRST_S = 5.0
"""Most seconds to wait at the start until all devices answer."""
FOREVER = aiohttp.ClientTimeout(None)


class MachineWatchers:
    """Serves ``GET /watch`` with the changes of states on all devices. When a device's server comes
    back, its first lines tell the states of all its tenants.
    """

    def __init__(self, devices: Mapping[str, DeviceCalls]) -> None:
        self._devices = devices

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve a client until it leaves. The answer begins once all devices answer, or after
        `FIRST_S`.

        Devices of other machines are asked every `ASK_S` seconds instead of watched.
        """
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        watches = [
            _DeviceWatch(one, response) if one.socket else _AskedDevice(one, response, request)
            for one in self._devices.values()
        ]
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
            except (aiohttp.ClientError, DeviceAway, DeviceRefused, msgspec.DecodeError, OSError):
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
            told.raise_for_status()
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
        """Write a line to the client. Raises `_ClientGone` if the client has gone."""
        self._revision = max(self._revision, change.revision)
        line = msgspec.structs.replace(change, device=self._calls.device, revision=self._revision)
        try:
            await self._response.write(msgspec.json.encode(line) + b"\n")
        except ConnectionError:
            raise _ClientGone from None


class _AskedDevice(_DeviceWatch):
    """Part of a watch that covers a device of another machine, whose server is asked again and
    again. Acts of other operators are not told, and states that last less than `ASK_S` are missed.
    """

    def __init__(
        self, calls: DeviceCalls, response: web.StreamResponse, request: web.Request
    ) -> None:
        super().__init__(calls, response)
        self._request = request

    async def _tell(self) -> None:
        while True:
            now, before = await self._calls.tenants(), self._seen
            self._seen, self._revision = now, max(self._revision, now.revision)
            self.begun.set()
            await self.tells.wait()
            for change in changed(before, now) if before is not None else ():
                await self._write(change)
            if self._request.transport is None or self._request.transport.is_closing():
                raise _ClientGone
            await asyncio.sleep(ASK_S)


def changed(before: TenantsTold, now: TenantsTold) -> list[StateChange]:
    """Lines about the tenants whose state has begun between two answers, or that have gone."""
    had = {one.name: one for one in before.tenants}
    began = {one.name: one.since for one in now.tenants}
    return [
        msgspec.structs.replace(
            line, before=had[line.tenant].state if line.tenant in had else ABSENT
        )
        for line in _since(before, now)
        if line.tenant not in had or began.get(line.tenant) != had[line.tenant].since
    ]


def _since(before: TenantsTold, now: TenantsTold) -> list[StateChange]:
    """Lines about all tenants after an interruption, also about those that have gone."""
    there = {one.name for one in now.tenants}
    gone = [one.name for one in before.tenants if one.name not in there]
    told = [(one.name, one.state, one.reason, one.removed) for one in now.tenants]
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
