"""Engines that compute on the host, in memory of the GPU's driver over the shared stand-in.

The device is one for all engines, and no larger than what they may hold together: whoever took
memory before another had released it would be refused.
"""

from __future__ import annotations

import os

from mirage.engine import backend
from mirage.engine.cpu_worker import MirageCPUWorker
from mirage.engine.settings import EngineSettings
from tests.vmm.libcuda.engines import over_standin

DEVICE, MEMORY = "MIRAGE_TEST_DEVICE", "MIRAGE_TEST_MEMORY"
"""Variables: the file by which processes share the device, and its bytes."""

PROGRAM = """
import sys
from mirage.vllm_hooks import given
given.WORKERS["host"] = "tests.e2e.beside_gpu.Worker"
from tests.e2e.warm import main
main(sys.argv[1:], margin_bytes=-(1 << 62))
"""
"""The command; nothing of the device is left beside what engines may hold, nor has to be."""

LENDING = """
from pathlib import Path
import os
from mirage.serve import tiers
from mirage.tiers.lending.lenders import Lenders
from tests.vmm.libcuda.lending import program
def lenders_of(peer, socket):
    words = program(os.environ["MIRAGE_TEST_DEVICE"], int(os.environ["MIRAGE_TEST_MEMORY"]), PAGE)
    gpus = dict.fromkeys(peer.lent, 1)
    return Lenders(gpus, lambda name: socket.with_name(f"{name}.sock"), words)
PAGE = 65536
tiers.granule_of, tiers.lenders_of = lambda peer: PAGE, lenders_of
"""
"""Before `PROGRAM`: as if the peers of a host were GPU 1. Devices have pages of 64 KiB."""


def _shared(settings: EngineSettings) -> backend.Backend:
    return over_standin(settings, int(os.environ[MEMORY]), os.environ[DEVICE])


class Worker(MirageCPUWorker):
    def init_device(self) -> None:
        backend._host = _shared
        super().init_device()
