"""The memory of engines that are broken, or in which what is broken is seen sooner."""

from __future__ import annotations

from dataclasses import replace

from mirage.engine.device_memory import UNLIMITED, DeviceMemory
from mirage.engine.proof import Proof
from mirage.engine.settings import EngineSettings
from mirage.engine.startup import StartUp
from mirage.streaming.transfer import LayerStreamer
from tests.tampered.compute import RunsAhead
from tests.tampered.pool import PoisoningPool


class Poisoning(DeviceMemory):
    """What layers and extents leave is NaN."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.pool = PoisoningPool(self.driver, UNLIMITED)


class Unawaited(DeviceMemory):
    """No step waits for a streamed layer."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.backend = replace(self.backend, compute=RunsAhead(self.backend.compute))
        self.compute = self.backend.compute


class PoisoningUnawaited(Poisoning, Unawaited):
    """Both."""


class UnprovenStart(StartUp):
    """An engine starts whatever its model computes."""

    def prove(self, proof: Proof, streamer: LayerStreamer) -> None:
        """Not at all."""
