"""Lock that lets only one `mirage serve` use a GPU. Two servers would both plan with all of its
memory.

The lock is the name of an abstract socket, which the kernel keeps as long as its process lives. The
name has the UUID of the GPU if `nvidia-smi` tells it, because CUDA_VISIBLE_DEVICES may name a GPU
by number, by UUID, or by the beginning of a UUID.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from mirage.config import Config, ConfigError
from mirage.serve.admin.address import listener
from mirage.serve.launch.launcher import visible_gpu

LISTING = "nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"
LISTED_S = 30.0
"""Seconds to wait for the listing; a driver that hangs never gives one."""


@contextmanager
def sole_server(config: Config) -> Iterator[None]:
    """Context in which this process is the only server on the GPU of `config`.

    Raises `ConfigError` if another server has it. With `device.kind: host` nothing is locked,
    because then each server has memory of its own.
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
    """GPU of `config`: its UUID if that is known, else its name in CUDA_VISIBLE_DEVICES."""
    return identity(visible_gpu(config.device.index), _listing())


def visible_gpus() -> list[int]:
    """Numbers of the GPUs that `device.index` may name."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return list(range(len(named or _listing().splitlines())))


def identity(gpu: str, listing: str) -> str:
    """UUID of the GPU that CUDA_VISIBLE_DEVICES names as `gpu`, by the output of `LISTING`.

    Returns `gpu` itself if the output does not tell, as for a MIG instance.
    """
    parts = [line.split(",") for line in listing.splitlines()]
    listed = {pair[0].strip(): pair[1].strip() for pair in parts if len(pair) == 2}
    if gpu.isdecimal():
        return listed.get(str(int(gpu)), gpu)
    found = [uuid for uuid in listed.values() if uuid.lower().startswith(gpu.lower())]
    return found[0] if len(found) == 1 else gpu


def _listing() -> str:
    """Output of `LISTING` for this machine's GPUs; empty if the command fails."""
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
