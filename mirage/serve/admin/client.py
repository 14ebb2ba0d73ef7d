"""Client of an admin socket, for commands: one request at a time, and lines of a watch."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from mirage.errors import CommandFailed, InputRefused
from mirage.serve.admin.forms import (
    ActTaken,
    KeysTold,
    OperatorAct,
    StateChange,
    TenantStatus,
    TenantsTold,
    WhyTold,
)
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.overview.forms import OverviewTold
from mirage.serve.whatif.forms import PastRow, PastTold

ANSWER_S = 30.0
"""Seconds in which the server has to answer, beside all its other work."""
GLANCE_S = 5.0
"""Seconds to wait for an overview; a display that asks again and again shows that it is late."""
APPLY_S = 600.0
"""Seconds to wait for an apply: vLLM has to look at models first, which takes seconds for each."""
ODD_BYTES = "surrogateescape"
"""Error handler for bytes on a command line that are not UTF-8."""
Form = TypeVar("Form")


class Lines:
    """Lines of ``GET /watch``, one for each change of a tenant's state, as they arrive.

    The server has begun to send changes when this object is made.
    """

    def __init__(
        self, answer: http.client.HTTPResponse, connection: socket.socket, limit_s: float | None
    ) -> None:
        """`connection` has the answer. Lines are awaited for `limit_s` seconds in all; None:
        without limit.
        """
        self._answer, self._connection = answer, connection
        self._limit_s, self._until = limit_s, time.monotonic() + (limit_s or 0.0)

    def __iter__(self) -> Iterator[StateChange]:
        while line := self._line():
            yield _decoded(line, StateChange)

    def _line(self) -> bytes:
        """The next line; empty at the end. Raises `TimeoutError` when this object is `limit_s`
        seconds old.
        """
        if self._limit_s is not None:
            self._connection.settimeout(max(0.001, self._until - time.monotonic()))
        return self._answer.readline()


class AdminClient:
    """Client of a server's admin socket.

    Methods raise `InputRefused` for names and values that the server refuses, and `CommandFailed`
    for acts that are impossible now, or if the server does not answer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def tenants(self) -> TenantsTold:
        """State of each tenant, and once for all of them, facts about the server and its device."""
        return self._told("GET", "/tenants", TenantsTold)

    def tenant(self, name: str) -> TenantStatus:
        """State, memory and requests of the tenant `name`."""
        return self._told("GET", _path(name), TenantStatus)

    def why(self, name: str | None, last_s: float) -> WhyTold:
        """Moves, and loans of the last `last_s` seconds, of one tenant or of all (None).

        All pages are read and joined.
        """
        words = {"last": f"{last_s:g}"} | ({} if name is None else {"tenant": name})
        query = urlencode(words, errors=ODD_BYTES)
        told = page = self._told("GET", f"/why?{query}", WhyTold)
        while page.next_skip is not None:
            page = self._told("GET", f"/why?{query}&skip={page.next_skip}", WhyTold)
            told.loans.extend(page.loans)
        return msgspec.structs.replace(told, next_skip=None)

    def overview(self) -> OverviewTold:
        """Memory, rates, latencies and last decisions, at a glance."""
        return self._told("GET", "/overview", OverviewTold, timeout_s=GLANCE_S)

    def act(self, name: str, act: OperatorAct, drain_s: float | None = None) -> ActTaken:
        """Order an act; returns the server's words about what will happen.

        `drain_s` is the number of seconds for running requests, None for the usual time.
        """
        return self._told("POST", f"{_path(name)}/{act}?{_drain(drain_s)}", ActTaken)

    def apply(
        self, text: str, file: Path, *, dry_run: bool = False, drain_s: float | None = None
    ) -> ApplyTold:
        """Apply the configuration in `text`, or let a dry run (`dry_run`) tell the effects.

        `file` is its name in messages, and paths in it are relative to its folder. Running requests
        of tenants that stop have `drain_s` seconds, None for the server's own time. A dry run also
        returns facts for a simulation.
        """
        words = {"file": str(file), "folder": str(file.parent.absolute())}
        words |= {"dry_run": "1", "what_if": "1"} if dry_run else {}
        query = f"{urlencode(words, errors=ODD_BYTES)}&{_drain(drain_s)}"
        return self._told("PUT", f"/config?{query}", ApplyTold, text.encode(), APPLY_S)

    def set(self, name: str, keys: Mapping[str, Any], drain_s: float | None = None) -> ApplyTold:
        """Change keys of one tenant; None as a value removes the key. If the change needs a new
        engine, running requests may finish for `drain_s` seconds, None for the server's own
        time."""
        path, body = f"{_path(name)}?{_drain(drain_s)}", msgspec.json.encode(keys)
        return self._told("PATCH", path, ApplyTold, body, APPLY_S)

    def remove(self, name: str, drain_s: float | None = None) -> ApplyTold:
        """Stop serving a tenant, whose running requests have `drain_s` seconds, None for the
        server's own time."""
        path = f"{_path(name)}?{_drain(drain_s)}"
        return self._told("DELETE", path, ApplyTold, timeout_s=APPLY_S)

    def past(self, device: str = "") -> list[PastRow]:
        """Lengths and times of all requests of the last hour, of a device if there are several."""
        rows: list[PastRow] = []
        since: int | None = 0
        while since is not None:
            words = {"since": since} | ({"device": device} if device else {})
            page = self._told("GET", f"/requests?{urlencode(words)}", PastTold)
            rows += page.requests
            since = page.next_since
        return rows

    def reload_keys(self) -> str:
        """Let the server read its keys again; return a line about the keys in use then."""
        return self._told("POST", "/keys", KeysTold).line

    @contextmanager
    def watch(self, limit_s: float | None = None) -> Iterator[Lines]:
        """Context with the changes of states from now on, for `limit_s` seconds at most."""
        with self._connected(None) as connection:
            own: socket.socket = connection.sock  # the answer has it later
            yield Lines(self._answer(connection, "GET", "/watch"), own, limit_s)

    def _told(
        self,
        method: str,
        path: str,
        form: type[Form],
        body: bytes | None = None,
        timeout_s: float = ANSWER_S,
    ) -> Form:
        with self._connected(timeout_s) as connection:
            answer = self._answer(connection, method, path, body).read()
        return _decoded(answer, form)

    def _answer(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None = None,
    ) -> http.client.HTTPResponse:
        connection.request(method, path, body)
        answer = connection.getresponse()
        if answer.status >= 400:
            why = _message(answer.read()) or f"answer {answer.status}"
            raise (InputRefused if answer.status in (400, 404) else CommandFailed)(why)
        return answer

    @contextmanager
    def _connected(self, timeout_s: float | None) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("mirage")
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(timeout_s)
            connection.sock.connect(str(self._path))
            yield connection
        except TimeoutError:
            raise CommandFailed(f"{self._path}: no answer in {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or "it ended"
            raise CommandFailed(f"{self._path}: the server does not answer ({why})") from None
        finally:
            connection.close()


def _decoded(answer: bytes, form: type[Form]) -> Form:
    """Answer in this form. Raises `CommandFailed` for one of another program or version."""
    try:
        return msgspec.json.decode(answer, type=form)
    except msgspec.DecodeError as error:
        raise CommandFailed(
            f"the answer is none of this version's `mirage serve` ({error}): "
            "use the `mirage` command that started the server"
        ) from None


def _path(name: str) -> str:
    """Route of a tenant, for any characters in its name. Raises `InputRefused` if the name is
    empty.
    """
    if not name:
        raise InputRefused("the tenant's name is empty: use one that `mirage ps` lists")
    return f"/tenants/{quote(name, errors=ODD_BYTES)}"


def _drain(drain_s: float | None) -> str:
    return "" if drain_s is None else f"drain_s={drain_s:g}"


def _message(body: bytes) -> str:
    """Message in the body of an error; empty if there is none."""
    try:
        told: Any = msgspec.json.decode(body)
        return str(told["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
