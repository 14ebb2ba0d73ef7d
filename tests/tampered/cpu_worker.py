"""For ``--worker-cls``: workers on a CPU whose engine's memory tests have tampered with."""

from __future__ import annotations

from mirage.engine.cpu_worker import MirageCPUWorker
from mirage.engine.memory import EngineMemory
from mirage.engine.settings import EngineSettings
from tests.tampered.memory import (
    OverAllTiers,
    OverDisk,
    OverPeers,
    OverStrictPool,
    Poisoning,
    PoisoningUnawaitedUnproven,
)


class PoisoningWorker(MirageCPUWorker):
    """What is given away is NaN."""

    def make_memory(self, settings: EngineSettings) -> EngineMemory:
        return Poisoning(settings)


class UnawaitedWorker(MirageCPUWorker):
    """And nobody waits for a streamed layer."""

    def make_memory(self, settings: EngineSettings) -> EngineMemory:
        return PoisoningUnawaitedUnproven(settings)


class TieredWorker(MirageCPUWorker):
    """Above a pool of the tests'."""

    def make_memory(self, settings: EngineSettings) -> EngineMemory:
        return OverStrictPool(settings)


class PeeredWorker(MirageCPUWorker):
    """Above the pool itself, with peers."""

    def make_memory(self, settings: EngineSettings) -> EngineMemory:
        return OverPeers(settings)


class DiskedWorker(MirageCPUWorker):
    """Above the pool itself, with a slow disk."""

    def make_memory(self, settings: EngineSettings) -> EngineMemory:
        return OverDisk(settings)


class StormedWorker(MirageCPUWorker):
    """Above the pool itself, with peers and a disk."""

    def make_memory(self, settings: EngineSettings) -> EngineMemory:
        return OverAllTiers(settings)
