"""Requests to one device's server, at its admin socket."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from aiohttp import web

from mirage.config import ConfigError
from mirage.errors import CommandFailed
from mirage.serve.access.forms import AccessKey
from mirage.serve.admin.forms import ActTaken, KeysTold, OperatorAct, TenantsTold
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.source import Written
from mirage.serve.models.weights_progress import WeightsComing
from mirage.serve.whatif.forms import PastTold

BAD_REQUEST = 400
ANSWER_S = 30.0
LOOK_S = 2.0
"""Most seconds to wait for the status of a device, which is asked for again and again."""
APPLY_S = 600.0
"""Seconds to wait for an apply: vLLM has to look at models first."""
Form = TypeVar("Form")


class DeviceAway(Exception):
    """The server of a device does not answer."""


class DeviceRefused(Exception):
    """The server of a device has answered with an error; the message is that error's."""

    def __init__(self, device: str, message: str, status: int) -> None:
        """`status` is the HTTP status of the answer."""
        super().__init__(message)
        self.device, self.status = device, status


class DeviceCalls:
    """Client of the admin socket of one device's server.

    Methods that decode an answer raise `DeviceAway` if the server does not answer, and
    `DeviceRefused` if it answers with an error.
    """

    def __init__(self, device: str, socket: Path | None) -> None:
        """Calls to the server of `device`. `socket` is the path of that server's admin socket; None
        if it is reached in another way.
        """
        self.device, self.socket = device, socket

    async def tenants(self) -> TenantsTold:
        """All tenants of the device, with facts about its server."""
        return await self._told("GET", "/tenants", TenantsTold, timeout_s=LOOK_S)

    async def brings(self, model: str) -> WeightsComing:
        """Let the device's machine bring a model's weights into its store; returns the progress."""
        path = f"/weights/{quote(model, safe='')}"
        return await self._told("POST", path, WeightsComing)

    async def past(self, since: int) -> PastTold:
        """Page of clients' requests that have ended, after number `since`."""
        return await self._told("GET", f"/requests?since={since}", PastTold, timeout_s=LOOK_S)

    async def act(self, tenant: str, act: OperatorAct, drain_s: float | None = None) -> ActTaken:
        """Order an act on a tenant, whose running requests have `drain_s` seconds to end, None for
        the server's own time."""
        query = "" if drain_s is None else f"?drain_s={drain_s:g}"
        return await self._told("POST", f"/tenants/{quote(tenant)}/{act}{query}", ActTaken)

    async def holds(self, keys: tuple[AccessKey, ...]) -> KeysTold:
        """Make the server of the device use these keys, and read its certificate again."""
        return await self._told("PUT", "/keys", KeysTold, msgspec.json.encode(keys))

    async def serves(
        self,
        text: str,
        wanted: Written,
        drain_s: float | None = None,
        *,
        dry_run: bool = False,
        facts: bool = False,
    ) -> ApplyTold:
        """Let the server apply the configuration `wanted`, or with `dry_run` only tell the effects;
        `text` is `wanted` as text. Running requests of tenants that stop have `drain_s` seconds,
        None for the server's own time. With `facts` the answer to a dry run has the facts for a
        simulation.
        """
        words = {"file": str(wanted.path), "folder": str(wanted.folder), "above": "1"}
        words |= {"dry_run": "1"} if dry_run else {}
        words |= {"what_if": "1"} if facts else {}
        words |= {} if drain_s is None else {"drain_s": f"{drain_s:g}"}
        path = f"/config?{urlencode(words)}"
        return await self._told("PUT", path, ApplyTold, text.encode(), APPLY_S)

    async def _told(
        self,
        method: str,
        path: str,
        form: type[Form],
        body: bytes = b"",
        timeout_s: float = ANSWER_S,
    ) -> Form:
        answer = await self.answer(method, path, body, timeout_s)
        assert isinstance(answer.body, bytes)
        if answer.status >= 400:
            why = message_of(answer.body) or f"answer {answer.status}"
            raise DeviceRefused(self.device, why, answer.status)
        return msgspec.json.decode(answer.body, type=form)

    async def answer(
        self, method: str, path: str, body: bytes = b"", timeout_s: float = ANSWER_S
    ) -> web.Response:
        """Return status, body and content type of the device server's answer to a request with
        this `body`; other headers, such as ``ETag``, are left out. An error status raises nothing.
        Raises `DeviceAway` if the server cannot be reached or does not answer within `timeout_s`
        seconds.
        """
        limit = aiohttp.ClientTimeout(timeout_s)
        try:
            async with (
                self.session() as http,
                http.request(method, path, data=body or None, timeout=limit) as answer,
            ):
                told = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            raise DeviceAway(f"the server of device {self.device!r} is away: ask again") from None
        return web.Response(body=told, status=answer.status, content_type=answer.content_type)

    def session(self) -> aiohttp.ClientSession:
        """HTTP client of the admin socket; the caller closes it."""
        connector = aiohttp.UnixConnector(str(self.socket), force_close=True)
        return aiohttp.ClientSession("http://device", connector=connector)


def refusal_of(error: DeviceRefused) -> ConfigError | CommandFailed:
    """Exception that an apply raises when a device has refused it: `ConfigError` for HTTP status
    400, else `CommandFailed`."""
    kind = ConfigError if error.status == BAD_REQUEST else CommandFailed
    return kind(f"device {error.device!r}: {error}")


def message_of(body: bytes) -> str:
    """Message in the body of an HTTP answer that is an error; empty if there is none."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
