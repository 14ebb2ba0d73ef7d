"""For ``--worker-cls``: a worker on a GPU that does not wait for streamed layers."""

from __future__ import annotations

from mirage.engine.gpu_worker import MirageGPUWorker
from mirage.engine.memory import EngineMemory
from mirage.engine.settings import EngineSettings
from tests.tampered.memory import UnawaitedUnproven


class UnawaitedWorker(MirageGPUWorker):
    """Nor is it proven, or it would not start."""

    def make_memory(self, settings: EngineSettings) -> EngineMemory:
        return UnawaitedUnproven(settings)
