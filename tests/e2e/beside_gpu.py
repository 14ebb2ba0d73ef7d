"""Engines that compute on the host, with memory of a stand-in for the GPU's driver.

The stand-in is one device for all engines, and no larger than the sum of what they may hold. An
engine that took memory before another one had released it would be refused. The engines' worker is
in `gpu_stand_in_worker`, which imports vLLM.
"""

from __future__ import annotations

DEVICE, MEMORY = "MIRAGE_TEST_DEVICE", "MIRAGE_TEST_MEMORY"
"""Variables: the file by which processes share the device, and its bytes."""

PROGRAM = """
import sys
from mirage.vllm_hooks import given
given.WORKERS["host"] = "tests.e2e.gpu_stand_in_worker.Worker"
from tests.e2e.warm import main
main(sys.argv[1:], margin_bytes=-(1 << 62))
"""
"""Code of the `mirage` command with such engines. By its `margin_bytes` no device memory has to be
free beside what engines may hold.
"""

LENDING = """
from pathlib import Path
import os
from mirage.serve.device import tiers
from mirage.tiers.lending.lenders import Lenders
from tests.vmm.libcuda.lending import program
def lenders_of(peer, socket):
    words = program(os.environ["MIRAGE_TEST_DEVICE"], int(os.environ["MIRAGE_TEST_MEMORY"]), PAGE)
    gpus = dict.fromkeys(peer.lent, 1)
    return Lenders(gpus, lambda name: socket.with_name(f"{name}.sock"), words)
PAGE = 65536
tiers.granule_of, tiers.lenders_of = lambda peer: PAGE, lenders_of
"""
"""Code before `PROGRAM`: peers lend memory of the stand-in's GPU 1. Devices have pages of 64 KiB.
"""
