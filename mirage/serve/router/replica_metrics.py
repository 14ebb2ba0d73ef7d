"""Metrics of replicas: requests at each, its rate, and requests that were sent to another one."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirage.serve.metrics.exposition import DEVICE
from mirage.serve.router.devices import RoutedDevices


class ReplicaMetrics(Collector):
    """Metrics of the replicas behind a router of several devices."""

    def __init__(self, devices: RoutedDevices) -> None:
        self._devices = devices

    def collect(self) -> Iterator[Metric]:
        labels, now = ["tenant", DEVICE], time.monotonic()
        text = "Requests that run at a replica or wait for it"
        in_flight = GaugeMetricFamily("mirage_replica_in_flight", text, labels=labels)
        text = "Requests a second that a busy replica completes, 0 while that is unknown"
        rates = GaugeMetricFamily("mirage_replica_rate", text, labels=labels)
        for one in self._devices:
            in_flight.add_metric([one.name, one.device], one.in_flight)
            rates.add_metric([one.name, one.device], one.pace.rate(now))
        text = "Requests that were sent to another replica, by what happened at the first one"
        again = CounterMetricFamily("mirage_requests_rerouted", text, labels=["tenant", "cause"])
        for (tenant, fate), count in self._devices.rerouted.items():
            again.add_metric([tenant, fate.value.replace(" ", "_")], count)
        yield from (in_flight, rates, again)
