"""State that all connections of clients share: their limits, and counts for metrics."""

from __future__ import annotations

from mirage.config import HttpSection
from mirage.serve.clients.body_budget import BodyBudget
from mirage.serve.clients.client_metrics import ClientMetrics
from mirage.serve.clients.crowd import Crowd
from mirage.serve.files import raise_limit

SPARE_FILES = 128
"""Open files of a server beyond two for each connection: a client's and its engine's."""


class ClientFront:
    """Limits and counts of one address.

    It raises this process's limit of open files as far as it may, and admits no more connections
    than that limit allows.
    """

    def __init__(self, http: HttpSection) -> None:
        self.http = http
        self.crowd = Crowd(_most(http), http.connections_per_peer)
        self.bodies = BodyBudget(http.body_bytes)
        self.metrics = ClientMetrics(self.crowd, self.bodies)

    def becomes(self, http: HttpSection) -> None:
        """Have other limits from now on; nothing that is there already ends by them."""
        self.http = http
        self.crowd.most, self.crowd.most_per_peer = _most(http), http.connections_per_peer
        self.bodies.most = http.body_bytes


def _most(http: HttpSection) -> int:
    """Connections that files can be opened for."""
    files = raise_limit(2 * http.connections + SPARE_FILES)
    return min(http.connections, max(1, (files - SPARE_FILES) // 2))
