"""Admin routes of several devices: each request is passed on to the devices that it is about."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web
from aiohttp.hdrs import METH_ANY

from mirage.config import Policy
from mirage.errors import InputRefused
from mirage.serve.admin.asked import as_json, check_fresh, known, number
from mirage.serve.admin.audit import audited
from mirage.serve.admin.declaring import Declaring
from mirage.serve.admin.explaining import LAST_S
from mirage.serve.admin.forms import (
    FORM_VERSION,
    LONGEST_S,
    ActTaken,
    DeviceStatus,
    KeysTold,
    TenantsTold,
    WhyTold,
)
from mirage.serve.api.openai import ApiError, Handler, errors_as_json
from mirage.serve.http.private_site import PrivateSite
from mirage.serve.machine.calls import DeviceAway, DeviceCalls
from mirage.serve.machine.move_book import MoveBook
from mirage.serve.machine.watch import MachineWatchers

Form = TypeVar("Form")
DEVICE = "device"
"""Key of a query that names one device."""


class MachineAdmin:
    """Operators' routes of a server with several devices. `start` listens at the admin socket,
    `stop` ends that."""

    def __init__(
        self,
        devices: Mapping[str, DeviceCalls],
        declaring: Declaring,
        book: MoveBook,
        policy: Policy,
        reload_keys: Callable[[], Awaitable[str]],
    ) -> None:
        """`devices` are the clients of the devices' servers, by device; entries may be added to the
        mapping later. `book` has the moves of models.

        `reload_keys` reads the keys again and returns a line about them; it raises `InputRefused`
        if they cannot be read.
        """
        self._devices, self._policy, self._reload_keys = devices, policy, reload_keys
        self._url, self._book, self._began = "", book, time.time()
        self._declaring, self._revision = declaring, declaring.revision
        self._watchers = MachineWatchers(self._devices)
        self.site = PrivateSite()

    async def start(self, path: Path, url: str) -> None:
        """Listen at `path`; `url` is the server's address for clients, which `GET /tenants` tells.
        Raises `OSError` if it cannot listen."""
        self._url = url
        app = web.Application(middlewares=self.middlewares())
        app.add_routes(
            [
                web.get("/tenants", self._all),
                web.get("/tenants/{name:(?s:.+)}", self._one),
                web.post("/tenants/{name:(?s:.+)}/{act}", self._act),
                web.get("/watch", self._watchers.serve),
                web.post("/keys", self._keys),
                web.get("/why", self._why),
                *map(self._unless_named, self._declaring.routes()),
                web.route(METH_ANY, "/{other:(?s:.*)}", self._of_one_device),
            ]
        )
        await self.site.start(app, path)

    def middlewares(self) -> list[Any]:
        """Middlewares (of aiohttp) of the routes, the outermost first."""
        return [errors_as_json]

    async def stop(self) -> None:
        """Stop accepting connections. Idempotent."""
        await self.site.stop()

    # -- all of them --------------------------------------------------------------------

    async def _all(self, request: web.Request) -> web.Response:
        by_device = await self._told()
        told = by_device.values()
        server = DeviceStatus(
            pid=os.getpid(),
            url=self._url,
            policy=self._policy.value,
            device=", ".join(self._devices),
            device_bytes=sum(one.server.device_bytes for one in told),
        )
        every = TenantsTold(
            form_version=FORM_VERSION,
            revision=self._revision.number,
            server=server,
            tenants=[
                msgspec.structs.replace(tenant, device=name)
                for name, one in by_device.items()
                for tenant in one.tenants
            ],
            coming=[weights for one in told for weights in one.coming],
        )
        return as_json(every, self._revision)

    async def _told(self) -> dict[str, TenantsTold]:
        """Answers to `GET /tenants` by device, without devices whose servers do not answer."""
        names = list(self._devices)
        asked = await asyncio.gather(
            *(self._asked(name, "GET", "/tenants") for name in names), return_exceptions=True
        )
        answers = dict(zip(names, asked, strict=True))
        return {
            name: _decoded(answer, TenantsTold)
            for name, answer in answers.items()
            if isinstance(answer, web.Response)
        }

    async def _keys(self, request: web.Request) -> web.Response:
        """Route that makes the server read its keys again and send them to the router."""
        with audited(request, "reload-keys", "-") as result:
            try:
                line = await self._reload_keys()
            except InputRefused as error:
                raise ApiError(400, f"the keys stay as they were: {error}") from None
            result.append(f"200 {line}")
            return as_json(KeysTold(line=line), self._revision)

    async def _why(self, request: web.Request) -> web.Response:
        """Answer `GET /why`: with the moves of models between devices, or, if the query names a
        device, with that device's own answer about moves and loans of memory.
        """
        if request.query.get(DEVICE) is not None:
            return await self._of_one_device(request)
        last_s = number(request, "last", "seconds", 0, LONGEST_S)
        now, tenant = time.time(), request.query.get("tenant")
        if tenant is not None:
            known(
                tenant,
                {one.name: 0 for told in (await self._told()).values() for one in told.tenants},
            )
        since = now - (LAST_S if last_s is None else last_s)
        told = WhyTold(
            t=now,
            began=self._began,
            since=max(since, self._began),
            moves=[],
            loans=[],
            next_skip=None,
            placements=self._book.told(tenant, since),
            stays=self._book.stays,
            sockets={n: str(one.socket) for n, one in self._devices.items() if one.socket},
        )
        return as_json(told, self._revision)

    # -- of some ------------------------------------------------------------------------

    async def _one(self, request: web.Request) -> web.Response:
        """Answer with a tenant's status on the named device, else on the first that serves it, and
        with the revision of this server, by which acts are compared.
        """
        device = (await self._serving(request))[0]
        answer = await self._asked(device, "GET", request.raw_path)
        answer.headers["ETag"] = self._revision.tag
        return answer

    async def _act(self, request: web.Request) -> web.Response:
        """Carry out an act on the named device, else on all devices that serve the tenant, one by
        one. If devices refuse, answer with the first refusal; the others have carried the act out.
        Raises `ApiError` if a server does not answer; the devices after it are not asked.
        """
        check_fresh(request, self._revision)
        answers = {
            device: await self._asked(device, "POST", request.raw_path)
            for device in await self._serving(request)
        }
        taken = {n: _decoded(one, ActTaken) for n, one in answers.items() if one.status < 400}
        if taken:
            self._revision.grows()
        if refused := next((one for one in answers.values() if one.status >= 400), None):
            return refused
        told = msgspec.structs.replace(
            next(iter(taken.values())),
            revision=self._revision.number,
            devices=taken,
        )
        return as_json(told, self._revision, status=202)

    async def _serving(self, request: web.Request) -> list[str]:
        """Devices that a request about a tenant concerns: the one that its query names, even if it
        does not have the tenant, else all that answer and have the tenant. Raises `ApiError` for an
        unknown device, and without a named device for an unknown tenant.
        """
        name, told = request.match_info["name"], await self._told()
        if (device := request.query.get(DEVICE)) is not None:
            return [known_device(device, self._devices)]
        found = [
            device
            for device, one in told.items()
            if any(name in (tenant.name, *tenant.spec.aliases) for tenant in one.tenants)
        ]
        if not found:
            known(name, list({tenant.name: 0 for one in told.values() for tenant in one.tenants}))
        return found

    async def _of_one_device(self, request: web.Request) -> web.Response:
        """Pass a request on to the device that its query names. Raises `ApiError` if the query
        names no device, or an unknown one."""
        if (device := request.query.get(DEVICE)) is None:
            each = [(name, one.socket) for name, one in self._devices.items()]
            sockets = ", ".join(f"{name}: --socket {socket}" for name, socket in each if socket)
            at = sockets or "at its socket on its machine"
            raise ApiError(409, f"several devices are served here, ask that of one ({at})")
        name = known_device(device, self._devices)
        return await self._asked(name, request.method, request.raw_path, await request.read())

    def _unless_named(self, route: web.RouteDef) -> web.RouteDef:
        """Route that passes requests that name a device on to that device's server, and handles
        others as `route` does."""
        handler = cast(Handler, route.handler)

        async def handle(request: web.Request) -> web.StreamResponse:
            named = request.query.get(DEVICE) is not None
            return await (self._of_one_device if named else handler)(request)

        return web.route(route.method, route.path, handle)

    async def _asked(self, device: str, method: str, path: str, body: bytes = b"") -> web.Response:
        """Answer of a device's server to a request with this `body`. Raises `ApiError` if the
        server does not answer."""
        try:
            return await self._devices[device].answer(method, path, body)
        except DeviceAway as error:
            raise ApiError(503, str(error)) from None


def _decoded(answer: web.Response, form: type[Form]) -> Form:
    assert isinstance(answer.body, bytes)
    return msgspec.json.decode(answer.body, type=form)


def known_device(name: str, devices: Mapping[str, object]) -> str:
    """`name`, which has to be one of the devices. Raises `ApiError` if it is not."""
    if name not in devices:
        raise ApiError(404, f"no device {name!r} here: use one of {', '.join(devices)}")
    return name
