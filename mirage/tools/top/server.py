"""A running server as ``mirage top`` asks it, also after it has ended and another one runs."""

from __future__ import annotations

from pathlib import Path

from mirage.errors import CommandFailed
from mirage.serve.admin.address import chosen
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.serve.overview.forms import OverviewTold


class WatchedServer:
    """The server at a socket that was named, else the only one that runs when it is asked."""

    def __init__(self, named: Path | None = None) -> None:
        self._named = named
        self.path: Path | None = None
        """Socket that answered last; None while none does."""

    def overview(self) -> OverviewTold:
        """The overview of now. Raises `InputRefused` or `CommandFailed` if no server answers."""
        path = self.path or chosen(self._named)
        self.path = None
        told = AdminClient(path).overview()
        self.path = path
        return told

    def act(self, name: str, act: OperatorAct) -> str:
        """Have an act done; what will happen. Raises `InputRefused` or `CommandFailed`."""
        if (path := self.path) is None:
            raise CommandFailed("the server does not answer")
        return AdminClient(path).act(name, act).will
