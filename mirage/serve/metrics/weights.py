"""Metrics of weights that are brought into this machine's store while it serves."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mirage.serve.models.weights_progress import BroughtWeights


def ahead_metrics(brought: BroughtWeights) -> Iterator[Metric]:
    """Metrics of bytes brought, bytes missing, and results."""
    text = "Bytes of weights that were brought to this machine's store"
    yield CounterMetricFamily("mirage_weights_brought_bytes", text, value=float(brought.bytes))
    text = "Bytes of weights that a transfer under way has not brought yet"
    missing = sum(one.missing - one.here for one in brought.coming)
    yield GaugeMetricFamily("mirage_weights_missing_bytes", text, value=float(missing))
    text = "Models brought to this machine's store in advance, by result"
    results = CounterMetricFamily("mirage_weights_brought", text, labels=["result"])
    for result, count in brought.results.items():
        results.add_metric([result], float(count))
    yield results
