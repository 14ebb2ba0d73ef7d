"""Answer to a scrape: the router's own metrics, those of the engines, and the supervisor's."""

from __future__ import annotations

import asyncio

from mirage.serve.router.asked_source import AskedSource, renewed
from mirage.serve.router.engine_metrics import EngineMetrics
from mirage.serve.router.inner import InnerClient
from mirage.serve.router.metrics import RouterMetrics

ENGINES_S = 0.25
"""Seconds for which engines are waited for together."""
SUPERVISOR_S = 2.0
UP = """\
# HELP mirage_supervisor_up 1 while the supervisor answers
# TYPE mirage_supervisor_up gauge
mirage_supervisor_up {}
"""


class MetricsScrape:
    """All metrics of one server. However often it is scraped, others are asked once a second.

    `close` has to follow.
    """

    def __init__(self, metrics: RouterMetrics, engines: EngineMetrics, inner: InnerClient) -> None:
        self._metrics, self._engines = metrics, engines
        self._supervisor = AskedSource(inner.metrics)
        metrics.add(engines)

    async def text(self) -> bytes:
        """Prometheus' text format."""
        await asyncio.gather(
            renewed(self._engines.sources(), ENGINES_S),
            renewed([self._supervisor], SUPERVISOR_S),
        )
        told = self._supervisor.answer
        up = UP.format(float(told is not None and not self._supervisor.late)).encode()
        return self._metrics.render() + self._engines.render() + (told or b"") + up

    def close(self) -> None:
        """Idempotent."""
        self._engines.close()
        self._supervisor.close()
