"""Metrics of weights that are brought into this machine's store while it serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mirage.serve.coming import WeightsComing


class BroughtWeights(Protocol):
    """Weights that are being brought, and those that were."""

    bytes: int

    @property
    def coming(self) -> Sequence[WeightsComing]:
        """Progress of all models that are being brought."""

    @property
    def results(self) -> Mapping[str, int]:
        """Number of models that were brought, by result."""


def ahead_metrics(brought: BroughtWeights) -> Iterator[Metric]:
    """Metrics of bytes brought, bytes missing, and results."""
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
