"""Weights that come into the store of this machine while it serves, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mirage.serve.coming import WeightsComing


class BroughtWeights(Protocol):
    """Weights that come or have come."""

    bytes: int

    @property
    def coming(self) -> Sequence[WeightsComing]:
        """All that come now."""

    @property
    def results(self) -> Mapping[str, int]:
        """Models that were brought, by how that ended."""


def ahead_metrics(brought: BroughtWeights) -> Iterator[Metric]:
    """Bytes that have come, those that are missing, and how bringing ended."""
    text = "Bytes of weights that were brought to this machine's store"
    yield CounterMetricFamily("mirage_weights_brought_bytes", text, value=float(brought.bytes))
    text = "Bytes of weights that are being brought and have not come yet"
    missing = sum(one.missing - one.here for one in brought.coming)
    yield GaugeMetricFamily("mirage_weights_missing_bytes", text, value=float(missing))
    text = "Models that were brought to this machine's store ahead of their use, by the result"
    results = CounterMetricFamily("mirage_weights_brought", text, labels=["result"])
    for result, count in brought.results.items():
        results.add_metric([result], float(count))
    yield results
