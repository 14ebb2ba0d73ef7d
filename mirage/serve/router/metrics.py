"""Counts of requests as Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.registry import Collector

from mirage.serve.router.devices import RoutedDevices

CLIENT_LEFT = 499
"""Status by which a request is counted whose client went away; it is never sent."""


class RouterMetrics:
    """Counts of requests of this process. Those of tenants that are gone are dropped."""

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
        """Count one request to `tenant` (empty if unknown) that was answered with `status`."""
        if (count := self._counts.get((tenant, status))) is None:
            count = self._requests.labels(tenant, str(status))
            self._counts[tenant, status] = count
        count.inc()

    def refused(self, route: str, status: int) -> None:
        """Count one request to a refused route twice: by `route`, its path as registered, and by
        `status` among the requests of an unknown tenant."""
        self._refused.labels(route).inc()
        self.answered("", status)

    def add(self, collector: Collector) -> None:
        """Register another source of metrics, which comes after those of this object."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """All registered metrics in Prometheus' text format."""
        for tenant, status in list(self._counts):
            if tenant and tenant not in self._tenants:
                del self._counts[tenant, status]
                self._requests.remove(tenant, str(status))
        return generate_latest(self._registry)
