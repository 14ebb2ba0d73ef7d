"""The memory of engines that are broken, or in which what is broken is seen sooner."""

from __future__ import annotations

from dataclasses import replace

from mirage.engine.device_memory import UNLIMITED, DeviceMemory
from mirage.engine.proof import Proof
from mirage.engine.startup import StartUp
from mirage.engine_settings import EngineSettings
from mirage.streaming.transfer import LayerStreamer
from tests.tampered.compute import RunsAhead
from tests.tampered.pool import PoisoningPool


class Poisoning(DeviceMemory):
    """Memory that is filled with NaN when a layer or an extent leaves it."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.pool = PoisoningPool(self.driver, UNLIMITED)


class Unawaited(DeviceMemory):
    """Memory in which no step waits for a streamed layer."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.backend = replace(self.backend, compute=RunsAhead(self.backend.compute))
        self.compute = self.backend.compute


class PoisoningUnawaited(Poisoning, Unawaited):
    """Memory with both faults."""


class UnprovenStart(StartUp):
    """Start of an engine without the proof, so that a faulty engine starts."""

    def prove(self, proof: Proof, streamer: LayerStreamer) -> None:
        """Do nothing."""
