"""State that all connections of clients share: their limits, and counts for metrics."""

from __future__ import annotations

from mirage.config import HttpSection
from mirage.serve.clients.body_budget import BodyBudget
from mirage.serve.clients.client_metrics import ClientMetrics
from mirage.serve.clients.crowd import Crowd
from mirage.serve.rundir.resources import raise_limit

SPARE_FILES = 128
"""Number of open files that a server needs beside two for each connection: the socket of the
client, and one to an engine.
"""


class ClientFront:
    """Limits and counts of clients at one address of the server.

    It raises this process's limit of open files as far as it may, and admits no more connections
    than that limit allows.
    """

    def __init__(self, http: HttpSection) -> None:
        self.http = http
        self.lingering = 0
        """Refused connections that are open until their clients have read why."""
        self.crowd = Crowd(_most(http), http.connections_per_peer)
        self.bodies = BodyBudget(http.body_bytes)
        self.metrics = ClientMetrics(self.crowd, self.bodies)

    def becomes(self, http: HttpSection) -> None:
        """Use the limits of this section from now on. Open connections, and bodies that are held,
        stay even above a new limit.
        """
        self.http = http
        self.crowd.most, self.crowd.most_per_peer = _most(http), http.connections_per_peer
        self.bodies.most = http.body_bytes


def _most(http: HttpSection) -> int:
    """Most connections: `http.connections`, or fewer if this process may not open two files for
    each.
    """
    files = raise_limit(2 * http.connections + SPARE_FILES)
    return min(http.connections, max(1, (files - SPARE_FILES) // 2))
