"""Numbers of clients that were too slow or too many, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirage.serve.clients.body_budget import BodyBudget
from mirage.serve.clients.crowd import Crowd


class ClientMetrics(Collector):
    """Counts of refused connections and requests, and the present use of `crowd` and `bodies`."""

    def __init__(self, crowd: Crowd, bodies: BodyBudget) -> None:
        self._crowd, self._bodies = crowd, bodies
        self.slow = Counter({"head": 0, "body": 0})
        """Number of requests that came too slowly, by the part that was late."""
        self.kept_out = Counter({"all": 0, "peer": 0})
        """Number of connections refused by a limit, by the limit."""
        self.unshaken = Counter({"plain": 0, "late": 0, "refused": 0, "gone": 0})
        """Number of TLS handshakes that failed, by the reason."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "mirage_http_connections", "Open connections of clients", value=self._crowd.count
        )
        yield GaugeMetricFamily(
            "mirage_http_body_bytes",
            "Bytes of bodies of unanswered requests",
            value=self._bodies.held,
        )
        yield CounterMetricFamily(
            "mirage_http_bodies_refused",
            "Requests refused because their body had no room",
            value=self._bodies.refused,
        )
        for name, text, label, counts in (
            ("slow_clients", "Requests that arrived too slowly", "part", self.slow),
            ("connections_refused", "Connections refused by a limit", "limit", self.kept_out),
            ("handshakes_failed", "TLS handshakes that failed", "why", self.unshaken),
        ):
            family = CounterMetricFamily(f"mirage_http_{name}", text, labels=[label])
            for value, count in counts.items():
                family.add_metric([value], float(count))
            yield family
