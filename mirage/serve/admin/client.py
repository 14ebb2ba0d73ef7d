"""The commands' end of an admin socket: one request at a time, and lines of a watch."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mirage.errors import CommandFailed, InputRefused
from mirage.serve.admin.forms import (
    ActTaken,
    OperatorAct,
    StateChange,
    TenantStatus,
    TenantsTold,
)

ANSWER_S = 30.0
"""Seconds in which the server has to answer; it looks at requests beside all its other work."""
Form = TypeVar("Form")


class Lines:
    """Lines of a watch, as they come. The server has begun to tell when this is made."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[StateChange]:
        while line := self._answer.readline():
            yield msgspec.json.decode(line, type=StateChange)


class AdminClient:
    """A server's admin socket.

    `InputRefused` is raised for what the server does not know, `CommandFailed` for what cannot be
    done now, or if the server does not answer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def tenants(self) -> TenantsTold:
        """All tenants."""
        return self._told("GET", "/tenants", TenantsTold)

    def tenant(self, name: str) -> TenantStatus:
        """One tenant."""
        return self._told("GET", f"/tenants/{name}", TenantStatus)

    def act(self, name: str, act: OperatorAct, drain_s: float | None = None) -> ActTaken:
        """Ask for it; what will happen."""
        query = "" if drain_s is None else f"?drain_s={drain_s:g}"
        return self._told("POST", f"/tenants/{name}/{act}{query}", ActTaken)

    @contextmanager
    def watch(self) -> Iterator[Lines]:
        """Changes of states from now on."""
        with self._connected(None) as connection:
            yield Lines(self._answer(connection, "GET", "/watch"))

    def _told(self, method: str, path: str, form: type[Form]) -> Form:
        with self._connected(ANSWER_S) as connection:
            body = self._answer(connection, method, path).read()
        return msgspec.json.decode(body, type=form)

    def _answer(
        self, connection: http.client.HTTPConnection, method: str, path: str
    ) -> http.client.HTTPResponse:
        connection.request(method, path)
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


def _message(body: bytes) -> str:
    """The line of an error; empty if there is none."""
    try:
        told: Any = msgspec.json.decode(body)
        return str(told["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
