"""Prometheus metrics of the tiers below the device: by medium, and where known by tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mirage.tiers.contract import Medium
from mirage.tiers.counts import PeersState, PoolState, TenantState

GAUGES = {
    "held_bytes": ("mirage_tier_held_bytes", "Bytes of KV blocks in a tier"),
    "pinned_bytes": ("mirage_tier_pinned_bytes", "Bytes of KV blocks in a tier that requests need"),
    "share_bytes": ("mirage_tier_share_bytes", "Bytes of a tier that are a tenant's share"),
}
COUNTERS = {
    "misses": ("mirage_tier_misses", "KV blocks that requests looked up and no tier had"),
    "evictions": ("mirage_tier_evictions", "KV blocks evicted from a tier"),
    "refused": ("mirage_tier_refused", "KV blocks that found no room in a tier"),
    "stored_bytes": ("mirage_tier_stored_bytes", "Bytes of KV blocks copied into a tier"),
    "loaded_bytes": (
        "mirage_tier_loaded_bytes",
        "Bytes of KV blocks that engines copied from a tier",
    ),
}
OF_ALL = {"misses", "refused"}
"""Counters that only host memory has, because they are about all tiers together."""
SIZES = ("budget", "used", "unused", "owed")
DISK_COUNTS = ("stored", "loaded", "found", "evictions", "unbelieved", "refused", "errors")

Pools = Mapping[Medium, PoolState]
Disk = Mapping[str, int | bool]


def tier_metrics(pool: PoolState, disk: Disk | None) -> Iterator[Metric]:
    """Metrics of the host pool, of peers above it and of the disk below it."""
    pools = {Medium.HOST: pool}
    if pool.peers is not None:
        pools[Medium.PEER] = pool.peers.held
    yield _sizes(pools, disk)
    for field, (name, text) in GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["tenant", "medium"])
        for medium, tenant, own in _owners(pools):
            gauge.add_metric([tenant, medium.value], float(getattr(own, field)))
        yield gauge
    yield _hits(pools, disk)
    for field, (name, text) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["tenant", "medium"])
        for medium, tenant, own in _owners(pools):
            if medium is Medium.HOST or field not in OF_ALL:
                counter.add_metric([tenant, medium.value], float(getattr(own.counts, field)))
        yield counter
    if pool.peers is not None:
        yield from _lent(pool.peers)
    if disk is not None:
        yield from _on_disk(disk)


def _owners(pools: Pools) -> Iterator[tuple[Medium, str, TenantState]]:
    for medium, pool in pools.items():
        for tenant, own in pool.tenants.items():
            yield medium, tenant, own


def _sizes(pools: Pools, disk: Disk | None) -> Metric:
    text = "Bytes of a tier: budget, used, unused, owed"
    sizes = GaugeMetricFamily("mirage_tier_bytes", text, labels=["medium", "what"])
    for medium, pool in pools.items():
        for what in SIZES:
            sizes.add_metric([medium.value, what], float(getattr(pool, f"{what}_bytes")))
    if disk is not None:
        sizes.add_metric([Medium.SSD.value, "budget"], float(disk["capacity_bytes"]))
        sizes.add_metric([Medium.SSD.value, "used"], float(disk["held_bytes"]))
    return sizes


def _hits(pools: Pools, disk: Disk | None) -> Metric:
    """Hits by tier. Blocks that were brought up from the disk count for the disk, although they are
    read from host memory.
    """
    text = "KV blocks that requests looked up, by the tier that had them"
    hits = CounterMetricFamily("mirage_tier_hits", text, labels=["tenant", "medium"])
    for medium, tenant, own in _owners(pools):
        hits.add_metric([tenant, medium.value], float(own.counts.hits - own.counts.risen))
        if disk is not None and medium is Medium.HOST:
            hits.add_metric([tenant, Medium.SSD.value], float(own.counts.risen))
    return hits


def _lent(peers: PeersState) -> Iterator[Metric]:
    text = "Bytes of a peer: capacity, budget, held, owed"
    lent = GaugeMetricFamily("mirage_peer_bytes", text, labels=["device", "what"])
    for name, device in peers.devices.items():
        for what in ("capacity", "budget", "held", "owed"):
            lent.add_metric([name, what], float(getattr(device, f"{what}_bytes")))
    yield lent
    text = "Leases of memory that peers revoked"
    yield CounterMetricFamily("mirage_peer_revocations", text, value=peers.revocations)


def _on_disk(disk: Disk) -> Iterator[Metric]:
    text = "KV blocks of the SSD tier, by outcome"
    blocks = CounterMetricFamily("mirage_ssd_blocks", text, labels=["what"])
    for what in DISK_COUNTS:
        blocks.add_metric([what], float(disk[what]))
    yield blocks
    text = "KV bytes copied to and from the disk"
    copied = CounterMetricFamily("mirage_ssd_bytes", text, labels=["what"])
    for what in ("stored", "loaded"):
        copied.add_metric([what], float(disk[f"{what}_bytes"]))
    yield copied
    text = "1 while the disk is not used because it failed"
    yield GaugeMetricFamily("mirage_ssd_failed", text, value=float(disk["failed"]))
