"""HTTP server for operators, on a Unix socket that only this user can open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.hdrs import METH_GET

from mirage.errors import InputRefused
from mirage.serve.access.forms import AccessKey
from mirage.serve.admin.acts import DRAIN_S, ActedUpon, foretold, obstacle, target
from mirage.serve.admin.asked import as_json, check_fresh, seconds, tenant_named
from mirage.serve.admin.audit import audited
from mirage.serve.admin.bringing import Bringing
from mirage.serve.admin.declaring import Declaring
from mirage.serve.admin.explaining import Explaining
from mirage.serve.admin.forms import ActTaken, KeysTold, OperatorAct
from mirage.serve.admin.overviewing import Overviewing
from mirage.serve.admin.status import TenantsView
from mirage.serve.admin.watchers import Watchers
from mirage.serve.api.openai import ApiError, Handler, errors_as_json
from mirage.serve.http.private_site import PrivateSite
from mirage.serve.roster.attendance import Attendance
from mirage.serve.whatif import route as past_route
from mirage.serve.whatif.past import PastRequests

LOOK_S = 0.05
"""Most seconds between two looks at the tenants' states, some of which change without notice."""


class AdminServer:
    """Routes for operators of one server. `keep` has to run, so that watchers are sent changes of
    states; `stop` ends the service.
    """

    def __init__(
        self,
        view: TenantsView,
        attendance: Attendance,
        declaring: Declaring,
        explaining: Explaining,
        overviewing: Overviewing,
        bringing: Bringing,
        past: PastRequests,
        reload_keys: Callable[[], Awaitable[str]],
        order_keys: Callable[[tuple[AccessKey, ...]], Awaitable[None]],
        seen: Callable[[], Awaitable[None]],
        *,
        sleeps: bool,
    ) -> None:
        """`sleeps` is true if the policy lets tenants sleep.

        `reload_keys` reads the keys again and returns a line about them; `order_keys` replaces them
        by others. Both raise `InputRefused` if they do not replace the keys. `seen` returns once
        routers know the present states and declarations, or after two seconds.
        """
        self._past, self._seen = past, seen
        self._reload_keys, self._order_keys = reload_keys, order_keys
        self._view, self._attendance, self._sleeps = view, attendance, sleeps
        self._declaring, self._revision, self._url = declaring, declaring.revision, ""
        self._explaining, self._overviewing = explaining, overviewing
        self._bringing = bringing
        self._watchers = Watchers()
        self.site = PrivateSite()

    # -- listening ----------------------------------------------------------------------

    async def start(self, path: Path, url: str) -> None:
        """Listen at `path`, for the server at `url`. Raises `OSError` if no socket can be made
        there.
        """
        self._url = url
        app = web.Application(middlewares=[errors_as_json, self._looked])
        app.add_routes(
            [
                web.get("/tenants", self._all),
                web.get("/tenants/{name:(?s:.+)}", self._one),
                web.post("/tenants/{name:(?s:.+)}/{act}", self._act),
                web.get("/watch", self._watch),
                web.get(past_route.ROUTE, self._requests),
                web.post("/keys", self._keys),
                web.put("/keys", self._take_keys),
                *self._declaring.routes(),
                *self._explaining.routes(),
                *self._overviewing.routes(),
                *self._bringing.routes(),
            ]
        )
        await self.site.start(app, path)

    async def keep(self) -> None:
        """Tell watchers of changes of states. Never returns."""
        while True:
            self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._view.moved()

    async def stop(self) -> None:
        """End watchers and the bringing of weights, and stop listening. Idempotent."""
        self._watchers.end()
        await self.site.stop()
        await self._bringing.ahead.stop()

    def _look(self) -> None:
        self._watchers.tell(self._view.look(self._revision.number))

    @web.middleware
    async def _looked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: look at the states before and after each request, so that watchers miss
        nothing.

        A request that changes something is answered once routers know the change, or after two
        seconds.
        """
        self._look()
        try:
            answer = await handler(request)
            if request.method != METH_GET:
                await self._seen()
            return answer
        finally:
            self._look()

    # -- what is told -------------------------------------------------------------------

    async def _all(self, request: web.Request) -> web.Response:
        told = self._view.told(self._url, self._revision.number)
        return self._json(msgspec.structs.replace(told, coming=self._bringing.ahead.coming))

    async def _one(self, request: web.Request) -> web.Response:
        return self._json(self._view.status(self._known(request.match_info["name"])))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        return await self._watchers.serve(request)

    async def _requests(self, request: web.Request) -> web.Response:
        return await past_route.answer(self._past, request)

    def _known(self, name: str) -> str:
        """Name of the tenant that has `name` as its own or as an alias. Raises `ApiError` if no
        tenant has.
        """
        return tenant_named(name, self._view.sections)

    def _json(self, told: Any, status: int = 200) -> web.Response:
        return as_json(told, self._revision, status)

    async def _keys(self, request: web.Request) -> web.Response:
        """Route that makes the server read its keys again."""
        with audited(request, "reload-keys", "-") as result:
            try:
                line = await self._reload_keys()
            except InputRefused as error:
                raise ApiError(400, f"the keys stay as they were: {error}") from None
            result.append(f"200 {line}")
            return self._json(KeysTold(line=line))

    async def _take_keys(self, request: web.Request) -> web.Response:
        """Route that replaces the server's keys by those in the request."""
        with audited(request, "take-keys", "-") as result:
            try:
                keys = msgspec.json.decode(await request.read(), type=tuple[AccessKey, ...])
                await self._order_keys(keys)
            except (InputRefused, msgspec.DecodeError) as error:
                raise ApiError(400, f"the keys stay as they were: {error}") from None
            line = f"keys: {len(keys)}"
            result.append(f"200 {line}")
            return self._json(KeysTold(line=line))

    # -- acts ---------------------------------------------------------------------------

    async def _act(self, request: web.Request) -> web.Response:
        """Carry out an act; answer 202 with what will happen."""
        name, act = request.match_info["name"], request.match_info["act"]
        with audited(request, act, name) as result:
            taken = self._taken(request, self._known(name), _act_of(act))
            result.append(f"202 {taken.will}")
            return self._json(taken, status=202)

    def _taken(self, request: web.Request, name: str, act: OperatorAct) -> ActTaken:
        """Order an act on a tenant; return the answer. Raises `ApiError` if the act is impossible
        now, or the request names another revision.
        """
        drain_s = seconds(request)
        check_fresh(request, self._revision)
        on = self._acted_upon(name, act, drain_s)
        if why := obstacle(act, on):
            raise ApiError(409, why)
        will = foretold(act, on)
        self._look()  # what was before it
        self._do(name, act, drain_s)
        self._revision.grows()
        self._watchers.tell([self._view.acted(name, act, self._revision.number)])
        self._look()
        state = self._view.seen()[name].state
        return ActTaken(
            tenant=name, act=act, will=will, state=state, revision=self._revision.number
        )

    def _acted_upon(self, name: str, act: OperatorAct, drain_s: float | None) -> ActedUpon:
        """Tenant that the act is for. Raises `ApiError` if it is not served."""
        if (member := self._view.member(name)) is None:
            why = self._view.seen()[name].reason or "it was refused when the server started"
            raise ApiError(409, f"{name} is not served: {why}")
        usual_s = DRAIN_S if act is OperatorAct.DRAIN else self._attendance.roster.rules.drain_s
        return ActedUpon(
            name,
            member.state,
            self._sleeps,
            member.running,
            self._attendance.ready_s(name),
            usual_s if drain_s is None else drain_s,
        )

    def _do(self, name: str, act: OperatorAct, drain_s: float | None) -> None:
        if act is OperatorAct.RESTART:
            self._attendance.restart(name, drain_s)
            return
        if act is OperatorAct.DRAIN and drain_s is None:
            drain_s = DRAIN_S
        self._attendance.wish(name, target(act, sleeps=self._sleeps), drain_s)


def _act_of(word: str) -> OperatorAct:
    try:
        return OperatorAct(word)
    except ValueError:
        raise ApiError(404, f"no act {word[:40]!r}: use one of {', '.join(OperatorAct)}") from None
