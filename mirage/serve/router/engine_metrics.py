"""vLLM's own metrics of each engine, passed on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import aiohttp
from multidict import CIMultiDict
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirage.serve.metrics.exposition import DEVICE, ToldMetrics, families, merged, of_device
from mirage.serve.routed.table import REACHABLE
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.asked_source import AskedSource, renewed
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.engines import EngineRequest, EnginesConnected
from mirage.units import MIB

PATIENCE_S = 1.0
"""Seconds that a question for one engine's metrics waits."""
MODEL = "model_name"
"""Label of vLLM's metrics that gets the tenant's name."""
Life = tuple[str, str, int]
"""One life of an engine: the tenant's device and name, and the number of the engine."""
MOST_BYTES = 2 * MIB
"""Most bytes of an engine's answer that are read, many times vLLM's usual length; the metrics of an
engine with a longer answer are left out.
"""


class EngineMetrics(Collector):
    """Metrics of the engines that run now. Call `close` at the end."""

    def __init__(self, tenants: RoutedDevices, engines: EnginesConnected) -> None:
        self._tenants, self._engines = tenants, engines
        self._sources: dict[Life, AskedSource[ToldMetrics]] = {}

    def sources(self) -> list[AskedSource[ToldMetrics]]:
        """A source for each engine that can be reached now; those of other engines are closed."""
        reachable = (one for one in self._tenants if one.row.state in REACHABLE)
        there = {(one.device, one.name, one.engine): one for one in reachable}
        for life in self._sources.keys() - there.keys():
            self._sources.pop(life).close()
        for life in there.keys() - self._sources.keys():
            self._sources[life] = AskedSource(partial(self._told, there[life]))
        return list(self._sources.values())

    def render(self) -> bytes:
        """Last answers of all engines, merged, in Prometheus' text format."""
        return merged(one.answer for one in self._sources.values() if one.answer is not None)

    async def of(self, tenant: RoutedTenant) -> bytes | None:
        """Metrics of one tenant's engine, asked for if they are not fresh.

        If the engine is late, these are those of its last answer. None if the tenant has no engine
        that can be reached, or there is no answer, as after a question that failed.
        """
        self.sources()
        source = self._sources.get((tenant.device, tenant.name, tenant.engine))
        if source is None:
            return None
        await renewed([source], PATIENCE_S)
        return None if source.answer is None else merged([source.answer])

    def collect(self) -> Iterator[Metric]:
        text = "Age in seconds of the engine's own metrics in this answer"
        labels = ["tenant", DEVICE] if self._tenants.several else ["tenant"]
        ages = GaugeMetricFamily("mirage_engine_metrics_age_seconds", text, labels=labels)
        for (device, name, _), source in self._sources.items():
            if source.answer is not None:
                ages.add_metric([name, device][: len(labels)], source.age_s)
        yield ages

    def close(self) -> None:
        """Stop asking engines. Idempotent."""
        while self._sources:
            self._sources.popitem()[1].close()

    async def _told(self, tenant: RoutedTenant) -> ToldMetrics:
        """Scrape an engine's own metrics, and add the labels of its tenant and device. Raises
        `aiohttp.ClientError` if the engine cannot be reached or its answer cannot be used, and
        `OSError` if the connection breaks.
        """
        request = EngineRequest(self._engines.to(tenant), "GET", "/metrics", CIMultiDict())
        async with request as answer:
            if answer.status != 200:
                raise aiohttp.ClientPayloadError(f"status {answer.status}")
            text = await _whole(answer.content)
        return families(text, {MODEL: tenant.name, **of_device(tenant.device)})


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """Whole body of an answer. Raises `aiohttp.ClientPayloadError` if it exceeds `MOST_BYTES`."""
    text = bytearray()
    async for part in content.iter_any():
        text += part
        if len(text) > MOST_BYTES:
            raise aiohttp.ClientPayloadError(f"more than {MOST_BYTES:,} bytes")
    return bytes(text)
