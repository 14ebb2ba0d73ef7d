"""Engines that compute on the host, in memory of the GPU's driver over the shared stand-in.

The device is one for all engines, and no larger than what they may hold together: whoever took
memory before another had released it would be refused.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mirage.engine import backend
from mirage.engine.settings import EngineSettings
from mirage.engine.worker import MirageCPUWorker

ROOT = Path(__file__).parents[2]
DEVICE, MEMORY = "MIRAGE_TEST_DEVICE", "MIRAGE_TEST_MEMORY"
"""Variables: the file by which processes share the device, and its bytes."""

PROGRAM = """
import sys
from mirage.serve import launcher
launcher.WORKERS["host"] = "tests.e2e.beside_gpu.Worker"
from mirage.cli import main
main(sys.argv[1:])
"""


def _over_standin(settings: EngineSettings) -> backend.Backend:
    from tests.vmm.libcuda import StandIn

    standin = StandIn.load()
    standin.reset(int(os.environ[MEMORY]), settings.page)
    standin.share(os.environ[DEVICE])
    from mirage.transfer import HostCompute
    from vmm.cuda import CudaDriver

    driver = CudaDriver(settings.page, tensors_on="cpu")
    print(f"device {settings.tenant} of {driver.memory_info()[1]} bytes", file=sys.stderr)
    return backend.computed_by_host(driver, HostCompute())


class Worker(MirageCPUWorker):
    def init_device(self) -> None:
        backend._host = _over_standin
        super().init_device()
