"""Tiers below the device on the side of `mirage serve` (`tiers` in a configuration)."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from mirage.config import Config, ConfigError, PeerTier, SsdTier, TenantSection
from mirage.control.roster.states import LifeState
from mirage.processes.stopped import watch_for_stops
from mirage.serve.registry.registry import Registry
from mirage.serve.routed.resizing import Resize
from mirage.serve.rundir.folders import socket_name
from mirage.tiers.core import Core
from mirage.tiers.counts import PoolState
from mirage.tiers.ledger import Due
from mirage.tiers.lending.lenders import HolderRefused, Lenders
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.policies import POLICIES
from mirage.tiers.server import PoolServer
from mirage.tiers.ssd.store import FolderRefused, SsdStore
from mirage.tiers.standing import Standings

logger = logging.getLogger("mirage.serve.device.tiers")


class TierPool:
    """Pool of the tiers below one device; without a configured tier all calls but `resize` do
    nothing.
    """

    def __init__(self, config: Config, socket: Path) -> None:
        self._dues = {t.name: due_of(t) for t in config.tenants}
        self._standings = Standings()
        self._pool: PoolServer | None = None
        self._ssd: SsdStore | None = None
        self._lenders: Lenders | None = None
        self._hang_s = config.hang_s
        self._keeps: SsdTier | None = None
        """Section of the SSD tier if blocks of host memory are written to it at the end; else
        None.
        """
        if (host := config.host_tier) is not None:
            if (ssd := config.tiers.ssd) is not None:
                self._ssd = SsdStore(
                    ssd.directory, ssd.bytes, keep=ssd.keep, tenants=self._dues.keys()
                )
                self._keeps = ssd if ssd.keep and ssd.save_s else None
            peer, pace = config.tiers.peer, None
            plan, lenders = PeerPlan(), None
            if peer is not None:
                plan = PeerPlan(peer.lent, peer.backed, granule_of(peer))
                pace, lenders = peer.bytes_per_s, lenders_of(peer, socket)
            core = Core(host.bytes, POLICIES[host.policy], self._ssd, plan)
            self._pool = PoolServer(socket, core, self._dues, pace, lenders)
            self._lenders = lenders

    def start(self) -> None:
        """Start the pool, before any engine. Raises `ConfigError` if there is no memory for it, or
        if the disk's folder or a lending GPU cannot be used.
        """
        if self._pool is None:
            return
        try:
            self._pool.start()
        except FolderRefused as error:
            raise ConfigError(f"tiers.ssd.directory {error}: name another one") from None
        except HolderRefused as error:
            raise ConfigError(f"tiers.peer.devices.{error}: leave it out") from None
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(
                f"tiers.host: no host pool can be made ({why}): lower its bytes, or leave it out"
            ) from None
        for pid in self._lenders.pids().values() if self._lenders else ():
            watch_for_stops(pid, self._hang_s)

    async def listen(self) -> bool:
        """Let the pool listen at a new socket. False if there is no pool, or after `stop`. Raises
        `ValueError` if no socket can be made.
        """
        if self._pool is None or not self._pool.serving:
            return False
        await asyncio.wrap_future(self._pool.listen())
        return True

    async def stop(self) -> None:
        """Write the blocks of host memory to the disk if the SSD tier keeps them (`ssd.keep`), and
        stop the pool. Call it when all engines have ended. Idempotent.
        """
        if self._pool is None:
            return
        if self._ssd and self._keeps and self._pool.serving:
            await asyncio.to_thread(_save, self._pool, self._keeps, self._ssd)
        await asyncio.to_thread(self._pool.stop)

    async def dead(self, tenant: str) -> None:
        """Note that all processes of a tenant's engine have ended, so that none uses the pool any
        more.
        """
        if self._pool is not None:
            await asyncio.wrap_future(self._pool.dead(tenant))

    def declares(self, tenant: TenantSection) -> None:
        """Add a tenant, or change the share that it is entitled to."""
        known, due = tenant.name in self._dues, due_of(tenant)
        self._dues[tenant.name] = due
        if self._pool is not None:
            told = self._pool.declares if known else self._pool.enrol
            told(tenant.name, due)

    async def remove(self, tenant: str) -> None:
        """Remove a tenant for which `dead` was called, and erase its blocks once they are idle."""
        self._dues.pop(tenant, None)
        self._standings.forget(tenant)
        if self._pool is not None:
            await asyncio.wrap_future(self._pool.remove(tenant))

    def watch(self, registry: Registry) -> None:
        """Tell the pool the priority class of each tenant for which it has changed."""
        if self._pool is None:
            return
        failed = [n for n, b in registry.backends.items() if b.state is LifeState.FAILED]
        changes = self._standings.changes(self._dues, registry.reports, failed, time.monotonic())
        for tenant, standing in changes.items():
            logger.info("class tenant=%s class=%s", tenant, standing.name.lower())
            self._pool.stand(tenant, standing)

    async def resize(self, wanted: Resize) -> None:
        """Change the budgets of host memory and peers immediately; blocks that requests need are
        dropped later.

        Raises `ValueError` without a pool, and for a budget that the pool or peer cannot have.
        """
        if self._pool is None:
            raise ValueError("no tiers are configured here: set tiers.host.bytes and start again")
        for device, nbytes in wanted.peer.items():
            await asyncio.wrap_future(self._pool.resize_peer(device, nbytes))
            logger.info("peer device=%s budget_bytes=%d", device, nbytes)
        if wanted.host is not None:
            await asyncio.wrap_future(self._pool.resize(wanted.host))
            logger.info("host pool budget_bytes=%d", wanted.host)

    def state(self) -> PoolState | None:
        """State of the host pool; None if there is no pool."""
        return None if self._pool is None else self._pool.state()

    def disk(self) -> dict[str, int | bool] | None:
        """State of the SSD tier; None if there is no SSD tier."""
        return None if self._ssd is None else self._ssd.state()


def due_of(tenant: TenantSection) -> Due:
    """Share of the tiers that a tenant is entitled to, with its priority."""
    return Due(tenant.priority, tenant.percent)


def _save(pool: PoolServer, disk: SsdTier, store: SsdStore) -> None:
    """Write blocks that only host memory has to the disk, for `disk.save_s` seconds at most."""
    logger.info("ssd: KV blocks of host memory are written, %.3g s at most", disk.save_s)
    left = pool.save(disk.save_s, disk.bytes)
    if left and store.state()["failed"]:
        logger.warning("ssd: KV blocks of host memory were not written: the disk has failed")
    elif left:
        logger.warning(
            "ssd: %d KV blocks of host memory were not written in %.3g s: "
            "raise tiers.ssd.save_s to keep more",
            left,
            disk.save_s,
        )


def granule_of(peer: PeerTier) -> int:
    """Largest granularity of the lending GPUs' memory, in bytes; 0 if host memory stands in for
    them. Raises `DeviceUnavailable` if a GPU cannot be asked.
    """
    if not peer.gpus:
        return 0
    from vmm.cuda_device import device_facts

    return max(device_facts(gpu).granularity for gpu in peer.gpus.values())


def lenders_of(peer: PeerTier, socket: Path) -> Lenders | None:
    """Processes that hold the memory which GPUs lend, with sockets beside the pool's; None if no
    GPU lends.
    """
    if not peer.gpus:
        return None
    return Lenders(peer.gpus, lambda name: socket.with_name(socket_name("peer", name)))
