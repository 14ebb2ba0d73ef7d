"""Worker of the engines of `beside_gpu`: vLLM's for CPUs, with the driver stand-in's memory."""

from __future__ import annotations

import os

from mirage.engine import backend
from mirage.engine.cpu_worker import MirageCPUWorker
from mirage.engine_settings import EngineSettings
from tests.e2e.beside_gpu import DEVICE, MEMORY
from tests.vmm.libcuda.engines import over_standin


def _shared(settings: EngineSettings) -> backend.Backend:
    return over_standin(settings, int(os.environ[MEMORY]), os.environ[DEVICE])


class Worker(MirageCPUWorker):
    def init_device(self) -> None:
        backend._host = _shared
        super().init_device()
