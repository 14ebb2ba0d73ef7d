"""Answer to a scrape: metrics of the router itself, of the engines, and of the supervisors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirage.serve.metrics.exposition import DEVICE, families, merged, of_device
from mirage.serve.router.asked_source import AskedSource, renewed
from mirage.serve.router.engine_metrics import EngineMetrics
from mirage.serve.router.inner import InnerClient
from mirage.serve.router.metrics import RouterMetrics

ENGINES_S = 0.25
"""Seconds that a scrape waits for all engines together."""
SUPERVISOR_S = 2.0
UP = "mirage_supervisor_up"


class MetricsScrape(Collector):
    """All metrics of one server. Engines and supervisors are asked at most once a second.

    Call `close` at the end.
    """

    def __init__(
        self, metrics: RouterMetrics, engines: EngineMetrics, inners: Mapping[str, InnerClient]
    ) -> None:
        """`inners` are clients of the supervisors by device; one name may be empty.

        If there are several, a supervisor's metrics get the name of its device as a label, unless
        that name is empty.
        """
        self._metrics, self._engines = metrics, engines
        self._supervisors = {name: AskedSource(inner.metrics) for name, inner in inners.items()}
        metrics.add(engines)
        metrics.add(self)

    async def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        await asyncio.gather(
            renewed(self._engines.sources(), ENGINES_S),
            renewed(self._supervisors.values(), SUPERVISOR_S),
        )
        return self._metrics.render() + self._engines.render() + self._told()

    def _told(self) -> bytes:
        told = {name: one.answer or b"" for name, one in self._supervisors.items()}
        if len(told) == 1:
            return told.popitem()[1]
        return merged(families(text, of_device(name)) for name, text in told.items())

    def collect(self) -> Iterator[Metric]:
        label = [DEVICE] if len(self._supervisors) > 1 else []
        up = GaugeMetricFamily(UP, "1 while the supervisor answers", labels=label)
        for name, one in self._supervisors.items():
            up.add_metric([name][: len(label)], float(one.answer is not None and not one.late))
        yield up

    def close(self) -> None:
        """Stop asking engines and supervisors. Idempotent."""
        self._engines.close()
        for one in self._supervisors.values():
            one.close()
