"""Prometheus metrics of the registry; the router adds those of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirage.serve.adapting.desired import AdapterState
from mirage.serve.metrics.decisions import decision_metrics, roster_metrics
from mirage.serve.metrics.loans import loan_metrics
from mirage.serve.metrics.tiers import tier_metrics
from mirage.serve.metrics.weights import ahead_metrics
from mirage.serve.registry.registry import Registry
from mirage.tiers.contract import Medium

GAUGES = {
    "kv_blocks": ("mirage_kv_blocks", "KV blocks granted and usable"),
    "kv_used_blocks": ("mirage_kv_used_blocks", "KV blocks that belong to running requests"),
    "layers_remapped": ("mirage_layers_remapped", "Decoder layers whose memory was given away"),
    "experts": ("mirage_experts_remapped", "Experts of each layer whose memory was given away"),
    "held_bytes": ("mirage_held_bytes", "Bytes of device memory that the tenant holds"),
    "running": ("mirage_requests_running", "Requests in the running batch"),
    "waiting": ("mirage_requests_waiting", "Requests waiting to be scheduled"),
}
MASTERS = {
    "masters": ("mirage_weights_masters", "Sets of weights in host memory"),
    "used_bytes": (
        "mirage_weights_used_bytes",
        "Bytes of weights in host memory that an engine uses",
    ),
    "idle_bytes": (
        "mirage_weights_idle_bytes",
        "Bytes of weights in host memory that no engine uses",
    ),
    "idle_most_bytes": (
        "mirage_weights_idle_most_bytes",
        "Limit for the bytes of weights that no engine uses",
    ),
}
"""Metrics about weights in host memory, by the fields of ``kept_weights`` in ``/mirage/state``."""
COUNTERS = {
    "started": ("mirage_requests_started", "Requests that began to run"),
    "preemptions": ("mirage_preemptions", "Preempted requests"),
    "bytes_streamed": ("mirage_streamed_bytes", "Parameter bytes loaded from host memory"),
    "expert_hits": ("mirage_expert_hits", "Remapped experts that a step found in a spare frame"),
    "expert_loads": ("mirage_expert_loads", "Remapped experts that a step had to load"),
    "expert_bytes_loaded": ("mirage_expert_loaded_bytes", "Bytes of loaded experts"),
    "expert_peer_loads": ("mirage_expert_peer_loads", "Experts loaded from a peer"),
    "stall_s": ("mirage_stall_seconds", "Time that compute waited for a layer to arrive"),
    "steps": ("mirage_steps", "Scheduler steps"),
    "tokens": ("mirage_tokens", "Tokens computed, without drafts that were not accepted"),
    "recomputed_tokens": (
        "mirage_recomputed_tokens",
        "Tokens computed again for requests that were preempted",
    ),
    "prefill_tokens": (
        "mirage_prefill_tokens",
        "Prompt tokens computed, also those computed again after a preemption",
    ),
    "tokens_from_device": (
        "mirage_prefix_cache_tokens",
        "Tokens found in the prefix cache of the device",
    ),
    "tokens_loaded": ("mirage_loaded_tokens", "Tokens whose KV was loaded instead of computed"),
    "kv_bytes_up": ("mirage_kv_up_bytes", "KV bytes loaded from below the device"),
    "kv_bytes_down": ("mirage_kv_down_bytes", "KV bytes stored below the device"),
    "failed_loads": (
        "mirage_failed_loads",
        "Requests whose KV could not be loaded and was computed",
    ),
    "saved_s": (
        "mirage_saved_seconds",
        "Step time to compute the loaded tokens, estimated",
    ),
    "late_loads": (
        "mirage_late_loads",
        "Requests whose KV did not arrive in time and was computed",
    ),
}


def rendered(registry: Registry, router_ends: Mapping[str, int]) -> bytes:
    """All metrics of the registry in Prometheus' text format.

    `router_ends` are the numbers of routers that ended, by cause.
    """
    told = CollectorRegistry()
    told.register(_RegistryCollector(registry, router_ends))
    return generate_latest(told)


class _RegistryCollector(Collector):
    """Collector that reads the registry at each scrape, so that nothing is stored twice."""

    def __init__(self, registry: Registry, router_ends: Mapping[str, int]) -> None:
        self._registry, self._router_ends = registry, router_ends

    def collect(self) -> Iterator[Metric]:
        serves = "1 while the tenant serves, or will when a request comes, as while it sleeps"
        up = GaugeMetricFamily("mirage_tenant_up", serves, labels=["tenant"])
        text = "1 if the engine was adopted from a killed server"
        adopted = GaugeMetricFamily("mirage_tenant_adopted", text, labels=["tenant"])
        text = "1 for the present state of the tenant"
        states = GaugeMetricFamily("mirage_tenant_state", text, labels=["tenant", "state"])
        text = "Engines that were started in place of one that had ended"
        restarts = CounterMetricFamily("mirage_engine_restarts", text, labels=["tenant"])
        for name, backend in self._registry.backends.items():
            up.add_metric([name], float(backend.is_well))
            adopted.add_metric([name], float(backend.adopted))
            states.add_metric([name, backend.state.value], 1.0)
            restarts.add_metric([name], float(backend.restarts))
        yield from (up, adopted, states, restarts)
        text = "Requests lost between the API server and the engine core"
        lost = CounterMetricFamily("mirage_requests_lost", text, labels=["tenant"])
        for name, backend in self._registry.backends.items():
            lost.add_metric([name], float(backend.answers.lost))
        yield lost
        for field, (name, text) in GAUGES.items():
            yield self._fill(GaugeMetricFamily(name, text, labels=["tenant"]), field)
        for field, (name, text) in COUNTERS.items():
            yield self._fill(CounterMetricFamily(name, text, labels=["tenant"]), field)
        text = "Router processes that ended before the server"
        ends = CounterMetricFamily("mirage_router_ends", text, labels=["cause"])
        for cause, count in self._router_ends.items():
            ends.add_metric([cause], float(count))
        yield ends
        text = "Device servers that ended before the process above them"
        servers = CounterMetricFamily("mirage_device_server_ends", text, labels=["device", "cause"])
        for device, causes in self._registry.sources.server_ends().items():
            for cause, count in causes.items():
                servers.add_metric([device, cause], float(count))
        yield servers
        text = "Ended moves of models between devices"
        moves = CounterMetricFamily("mirage_placement_moves", text, labels=["result"])
        for result, count in self._registry.sources.moves().items():
            moves.add_metric([result], float(count))
        yield moves
        yield from self._adapters()
        yield from self._masters()
        sources, tenants = self._registry.sources, self._registry.backends
        yield from loan_metrics(sources.loans())
        if sources.decided is not None:
            yield from decision_metrics(sources.decided, tenants)
        if (attended := sources.attended()) is not None:
            yield from roster_metrics(attended, tenants)
        if sources.ahead is not None:
            yield from ahead_metrics(sources.ahead)
        if (pool := self._registry.sources.pool()) is not None:
            yield self._loaded()
            yield from tier_metrics(pool, self._registry.sources.disk())

    def _adapters(self) -> Iterator[Metric]:
        """Metrics of the adapters that tenants declare."""
        text = "1 while a declared adapter is loaded in its tenant's engine"
        loaded = GaugeMetricFamily("mirage_adapter_loaded", text, labels=["tenant", "adapter"])
        text = "Adapters loaded while engines run"
        loads = CounterMetricFamily("mirage_adapter_loads", text, labels=["tenant"])
        text = "Declared adapters that could not be loaded"
        failures = CounterMetricFamily("mirage_adapter_load_failures", text, labels=["tenant"])
        for name, backend in self._registry.backends.items():
            book = backend.loading
            for adapter, one in book.told().items():
                loaded.add_metric([name, adapter], float(one.state is AdapterState.LOADED))
            loads.add_metric([name], float(book.loads))
            failures.add_metric([name], float(book.failures))
        yield from (loaded, loads, failures)

    def _masters(self) -> Iterator[Metric]:
        """Metrics of weights in host memory; none if no weights are kept."""
        weights = self._registry.sources.weights
        if weights is not None and (told := weights.state()) is not None:
            for field, (name, text) in MASTERS.items():
                yield GaugeMetricFamily(name, text, value=told[field])

    def _loaded(self) -> CounterMetricFamily:
        """Tokens of KV blocks by the tier that had them, even if they were read from a higher
        tier.
        """
        text = "Tokens whose KV was loaded, by the tier that held it"
        family = CounterMetricFamily("mirage_tier_tokens", text, labels=["tenant", "medium"])
        for tenant, report in self._registry.reports.items():
            for medium in (Medium.PEER, Medium.HOST, Medium.SSD):
                tokens = getattr(report, f"tokens_from_{medium.value}")
                family.add_metric([tenant, medium.value], float(tokens))
        return family

    def _fill(
        self, family: GaugeMetricFamily | CounterMetricFamily, field: str
    ) -> GaugeMetricFamily | CounterMetricFamily:
        for tenant, report in self._registry.reports.items():
            family.add_metric([tenant], float(getattr(report, field)))
        return family
