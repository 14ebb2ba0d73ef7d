"""Decisions about memory, and tenants that sleep and wake, as Prometheus metrics.

A new metric per tenant goes here if the supervisor counts it, and begins in `mirage/counters.py` if
the engine does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from mirage.control.time_counts import TimeCounts
from mirage.serve.registry.registry import AttendedTenants, DecidedMemory


def decision_metrics(decided: DecidedMemory, tenants: Collection[str]) -> Iterator[Metric]:
    """Metrics of one device's arbiter. Each of `tenants` has a histogram of times, even an empty
    one.
    """
    text = "Messages about memory to an engine, by the reasons of the plan they follow"
    family = CounterMetricFamily("mirage_decisions", text, labels=["tenant", "reason"])
    for labels, count in decided.decisions.counts.items():
        family.add_metric(labels, float(count))
    yield family
    text = "Time from when an engine asks for KV memory of running requests until it can use it"
    yield _times("mirage_growth_seconds", text, decided.growth.counts, tenants)


def roster_metrics(attended: AttendedTenants, tenants: Collection[str]) -> Iterator[Metric]:
    """Metrics of one device's roster. Each of `tenants` has a histogram of times, even an empty
    one.
    """
    text = "Time from a tenant's wake until it was ready"
    yield _times("mirage_wake_seconds", text, attended.wakes, tenants)
    text = "Time of an engine's start until it was ready"
    yield _times("mirage_engine_start_seconds", text, attended.starts, tenants)
    text = "Requests that wait until their tenant is ready"
    queued = GaugeMetricFamily("mirage_requests_queued", text, labels=["tenant"])
    for name, count in attended.queued().items():
        queued.add_metric([name], float(count))
    yield queued


def _times(
    name: str, text: str, counts: Mapping[str, TimeCounts], tenants: Collection[str]
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["tenant"])
    for tenant in tenants:
        family.add_metric([tenant], counts[tenant].buckets(), counts[tenant].total_s)
    return family
