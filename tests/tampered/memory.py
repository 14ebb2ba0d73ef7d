"""The memory of engines that are broken, or in which what is broken is seen sooner."""

from __future__ import annotations

from dataclasses import replace

from mirage.engine.memory import UNLIMITED, EngineMemory
from mirage.engine.proof import Proof
from mirage.engine.settings import EngineSettings
from mirage.streaming.transfer import LayerStreamer
from mirage.tiers.contract import Member
from tests.tampered.compute import RunsAhead
from tests.tampered.disk_pool import DiskPool
from tests.tampered.peer_pool import PeerPool
from tests.tampered.pool import PoisoningPool
from tests.tampered.storm_pool import StormPool
from tests.tampered.strict_pool import StrictPool


class Poisoning(EngineMemory):
    """What layers and extents leave is NaN."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.pool = PoisoningPool(self.driver, UNLIMITED)


class Unawaited(EngineMemory):
    """No step waits for a streamed layer."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.backend = replace(self.backend, compute=RunsAhead(self.backend.compute))
        self.compute = self.backend.compute


class Unproven(EngineMemory):
    """Starts whatever its model computes."""

    def prove(self, proof: Proof, streamer: LayerStreamer) -> None:
        """Not at all."""


class UnawaitedUnproven(Unawaited, Unproven):
    """The proof would not let it start otherwise."""


class PoisoningUnawaitedUnproven(Poisoning, Unawaited, Unproven):
    """All of it."""


class OverStrictPool(Poisoning):
    """What extents leave is NaN, and below them is a pool of the tests'."""

    def join_pool(self, member: Member) -> StrictPool:
        return StrictPool(member)


class OverPeers(Poisoning):
    """What extents leave is NaN, and below them is the pool itself, with peers."""

    def join_pool(self, member: Member) -> PeerPool:
        return PeerPool(member)


class OverDisk(Poisoning):
    """What extents leave is NaN, and below them is the pool itself, with a slow disk."""

    def join_pool(self, member: Member) -> DiskPool:
        return DiskPool(member)


class OverAllTiers(Poisoning):
    """What extents leave is NaN, and below them are peers, host memory and a disk."""

    def join_pool(self, member: Member) -> StormPool:
        return StormPool(member)
