"""The running server that ``mirage top`` shows; after its end the next one is found."""

from __future__ import annotations

from pathlib import Path

from mirage.errors import CommandFailed, InputRefused
from mirage.serve.admin.address import chosen
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.serve.overview.forms import OverviewTold


class WatchedServer:
    """The server at the socket `named`. None: the only server that runs when one is looked for, at
    first and after each failure.
    """

    def __init__(self, named: Path | None = None) -> None:
        self._named = named
        self.path: Path | None = None
        """Socket that answered last; None after a failure."""

    def overview(self) -> OverviewTold:
        """The present overview. Raises `InputRefused` or `CommandFailed` if no server answers."""
        try:
            path = self.path or chosen(self._named)
            told = AdminClient(path).overview()
        except (InputRefused, CommandFailed):
            self.path = None
            raise
        self.path = path  # kept while it is asked: an act may come meanwhile
        return told

    def act(self, name: str, act: OperatorAct) -> str:
        """Have the server act on a tenant; return a text of what will happen. Raises `InputRefused`
        or `CommandFailed` if the server refuses or does not answer.
        """
        if (path := self.path) is None:
            raise CommandFailed("the server does not answer")
        return AdminClient(path).act(name, act).will
