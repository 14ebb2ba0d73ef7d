"""For ``--worker-cls``: a worker on a GPU that does not wait for streamed layers."""

from __future__ import annotations

from mirage.engine.device_memory import DeviceMemory
from mirage.engine.gpu_worker import MirageGPUWorker
from mirage.engine.settings import EngineSettings
from mirage.engine.startup import StartUp
from tests.tampered.memory import Unawaited, UnprovenStart


class UnawaitedWorker(MirageGPUWorker):
    """Nor is it proven, or it would not start."""

    def make_memory(self, settings: EngineSettings) -> DeviceMemory:
        return Unawaited(settings)

    def make_start_up(self) -> StartUp:
        return UnprovenStart(self.mirage.memory, self.mirage.times)
