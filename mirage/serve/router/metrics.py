"""Requests as Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.registry import Collector

from mirage.serve.router.devices import RoutedDevices

CLIENT_LEFT = 499
"""Status of a request whose client went away; nobody is sent it."""


class RouterMetrics:
    """Counts of this process; those of tenants that are there no more are dropped."""

    def __init__(self, tenants: RoutedDevices) -> None:
        self._tenants = tenants
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "mirage_http_requests",
            "Requests by tenant (empty if unknown) and HTTP status",
            ["tenant", "code"],
            registry=self._registry,
        )
        self._refused = Counter(
            "mirage_refused_routes",
            "Requests to routes of vLLM that are refused",
            ["route"],
            registry=self._registry,
        )
        self._counts: dict[tuple[str, int], Counter] = {}
        """Counters by tenant and status."""

    def answered(self, tenant: str, status: int) -> None:
        """Count one request."""
        if (count := self._counts.get((tenant, status))) is None:
            count = self._requests.labels(tenant, str(status))
            self._counts[tenant, status] = count
        count.inc()

    def refused(self, route: str, status: int) -> None:
        """Count one request to a route that is refused, as it is registered."""
        self._refused.labels(route).inc()
        self.answered("", status)

    def add(self, collector: Collector) -> None:
        """Register another source of metrics; its rows follow ours."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """Prometheus' text format."""
        for tenant, status in list(self._counts):
            if tenant and tenant not in self._tenants:
                del self._counts[tenant, status]
                self._requests.remove(tenant, str(status))
        return generate_latest(self._registry)
