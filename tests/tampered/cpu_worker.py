"""For ``--worker-cls``: workers on a CPU whose engine's memory tests have tampered with."""

from __future__ import annotations

from mirage.engine.cpu_worker import MirageCPUWorker
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.startup import StartUp
from mirage.engine_settings import EngineSettings
from mirage.tiers.contract import Member
from tests.tampered.disk_pool import DiskPool
from tests.tampered.memory import Poisoning, PoisoningUnawaited, UnprovenStart
from tests.tampered.peer_pool import PeerPool
from tests.tampered.storm_pool import StormPool
from tests.tampered.strict_pool import StrictPool


class PoisoningWorker(MirageCPUWorker):
    """Worker that fills memory with NaN when it is given away."""

    def make_memory(self, settings: EngineSettings) -> DeviceMemory:
        return Poisoning(settings)


class UnawaitedWorker(MirageCPUWorker):
    """Poisoning worker whose steps do not wait for streamed layers. It starts without a proof,
    which would fail.
    """

    def make_memory(self, settings: EngineSettings) -> DeviceMemory:
        return PoisoningUnawaited(settings)

    def make_start_up(self) -> StartUp:
        return UnprovenStart(self.mirage.memory, self.mirage.times)


class TieredWorker(PoisoningWorker):
    """Worker above a pool of the tests."""

    def join_pool(self, member: Member) -> StrictPool:
        return StrictPool(member)


class PeeredWorker(PoisoningWorker):
    """Worker above the real pool, with peers."""

    def join_pool(self, member: Member) -> PeerPool:
        return PeerPool(member)


class DiskedWorker(PoisoningWorker):
    """Worker above the real pool, with a slow disk."""

    def join_pool(self, member: Member) -> DiskPool:
        return DiskPool(member)


class StormedWorker(PoisoningWorker):
    """Worker above the real pool, with peers and a disk."""

    def join_pool(self, member: Member) -> StormPool:
        return StormPool(member)
