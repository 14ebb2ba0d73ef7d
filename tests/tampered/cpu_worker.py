"""For ``--worker-cls``: workers on a CPU whose engine's memory tests have tampered with."""

from __future__ import annotations

from mirage.engine.cpu_worker import MirageCPUWorker
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.settings import EngineSettings
from mirage.engine.startup import StartUp
from mirage.tiers.contract import Member
from tests.tampered.disk_pool import DiskPool
from tests.tampered.memory import Poisoning, PoisoningUnawaited, UnprovenStart
from tests.tampered.peer_pool import PeerPool
from tests.tampered.storm_pool import StormPool
from tests.tampered.strict_pool import StrictPool


class PoisoningWorker(MirageCPUWorker):
    """What is given away is NaN."""

    def make_memory(self, settings: EngineSettings) -> DeviceMemory:
        return Poisoning(settings)


class UnawaitedWorker(MirageCPUWorker):
    """And nobody waits for a streamed layer. The proof would not let it start."""

    def make_memory(self, settings: EngineSettings) -> DeviceMemory:
        return PoisoningUnawaited(settings)

    def make_start_up(self) -> StartUp:
        return UnprovenStart(self.mirage.memory, self.mirage.times)


class TieredWorker(PoisoningWorker):
    """Above a pool of the tests'."""

    def join_pool(self, member: Member) -> StrictPool:
        return StrictPool(member)


class PeeredWorker(PoisoningWorker):
    """Above the pool itself, with peers."""

    def join_pool(self, member: Member) -> PeerPool:
        return PeerPool(member)


class DiskedWorker(PoisoningWorker):
    """Above the pool itself, with a slow disk."""

    def join_pool(self, member: Member) -> DiskPool:
        return DiskPool(member)


class StormedWorker(PoisoningWorker):
    """Above the pool itself, with peers and a disk."""

    def join_pool(self, member: Member) -> StormPool:
        return StormPool(member)
