"""The running server that ``mirage top`` shows; it survives the server's end and finds the next
one.
"""

from __future__ import annotations

from pathlib import Path

from mirage.errors import CommandFailed
from mirage.serve.admin.address import chosen
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.serve.overview.forms import OverviewTold


class WatchedServer:
    """The server at the socket `named`; None: the only server that runs at the time of each
    request.
    """

    def __init__(self, named: Path | None = None) -> None:
        self._named = named
        self.path: Path | None = None
        """Socket that answered last; None while none answers."""

    def overview(self) -> OverviewTold:
        """The present overview. Raises `InputRefused` or `CommandFailed` if no server answers."""
        path = self.path or chosen(self._named)
        self.path = None
        told = AdminClient(path).overview()
        self.path = path
        return told

    def act(self, name: str, act: OperatorAct) -> str:
        """Have the server act on a tenant; return a text of what will happen. Raises `InputRefused`
        or `CommandFailed`.
        """
        if (path := self.path) is None:
            raise CommandFailed("the server does not answer")
        return AdminClient(path).act(name, act).will
