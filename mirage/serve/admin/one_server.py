"""One `mirage serve` on each GPU: a second one would count the same memory as its own.

The name is an abstract socket's, which the kernel keeps for as long as its owner lives. It has the
UUID of the GPU where `nvidia-smi` tells it: CUDA_VISIBLE_DEVICES may name a GPU by number or by
UUID, which may be shortened.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from mirage.config import Config, ConfigError
from mirage.serve.admin.address import listener
from mirage.serve.launcher import visible_gpu

LISTING = "nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"
LISTED_S = 30.0
"""Seconds for the listing; a driver that is stuck gives none."""


@contextmanager
def sole_server(config: Config) -> Iterator[None]:
    """Inside, this process is the only server of the GPU of `config`.

    Host memory is given in `device.memory`: servers share none. Raises `ConfigError`.
    """
    if config.device.kind != "cuda":
        yield
        return
    gpu = gpu_of(config)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
        address = f"\0mirage-serve-gpu-{gpu}"
        try:
            name.bind(address)
        except OSError:
            raise ConfigError(_taken(gpu, address)) from None
        name.listen()
        yield


def gpu_of(config: Config) -> str:
    """The GPU of `config`, by its UUID where that is known."""
    return identity(visible_gpu(config.device.index), _listing())


def visible_gpus() -> list[int]:
    """Indexes of the GPUs that a server may name, as `device.index` counts them."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return list(range(len(named or _listing().splitlines())))


def identity(gpu: str, listing: str) -> str:
    """The UUID of a GPU that CUDA_VISIBLE_DEVICES would name so, by the lines of `LISTING`.

    The name itself if they do not tell: of a MIG instance, or without a listing.
    """
    parts = [line.split(",") for line in listing.splitlines()]
    listed = {pair[0].strip(): pair[1].strip() for pair in parts if len(pair) == 2}
    if gpu.isdecimal():
        return listed.get(str(int(gpu)), gpu)
    found = [uuid for uuid in listed.values() if uuid.lower().startswith(gpu.lower())]
    return found[0] if len(found) == 1 else gpu


def _listing() -> str:
    """GPUs of this machine, as `nvidia-smi` counts them; empty where there is none."""
    try:
        done = subprocess.run(LISTING, capture_output=True, text=True, timeout=LISTED_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _taken(gpu: str, address: str) -> str:
    who = listener(address)
    whose = "another process" if who is None else f"process {who.pid}"
    return (
        f"device.index: {whose} serves on GPU {gpu} already: end it, add these tenants to its "
        "configuration, or name another GPU"
    )
