"""For ``--worker-cls``: a worker on a GPU that does not wait for streamed layers."""

from __future__ import annotations

from mirage.engine.device_memory import DeviceMemory
from mirage.engine.gpu_worker import MirageGPUWorker
from mirage.engine.startup import StartUp
from mirage.engine_settings import EngineSettings
from tests.tampered.memory import Unawaited, UnprovenStart


class UnawaitedWorker(MirageGPUWorker):
    """Worker whose steps do not wait for streamed layers. It starts without a proof, which would
    fail.
    """

    def make_memory(self, settings: EngineSettings) -> DeviceMemory:
        return Unawaited(settings)

    def make_start_up(self) -> StartUp:
        return UnprovenStart(self.mirage.memory, self.mirage.times)
