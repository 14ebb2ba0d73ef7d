"""One `mirage serve` on each GPU: a second one would count the same memory as its own.

The name is an abstract socket's, which the kernel keeps for as long as its owner lives.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from mirage.config import Config, ConfigError
from mirage.serve.admin.address import listener
from mirage.serve.launcher import visible_gpu


@contextmanager
def sole_server(config: Config) -> Iterator[None]:
    """Inside, this process is the only server of the GPU of `config`.

    Host memory is given in `device.memory`: servers share none. Raises `ConfigError`.
    """
    if config.device.kind != "cuda":
        yield
        return
    gpu = visible_gpu(config.device.index)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
        address = f"\0mirage-serve-gpu-{gpu}"
        try:
            name.bind(address)
        except OSError:
            raise ConfigError(_taken(gpu, address)) from None
        name.listen()
        yield


def _taken(gpu: str, address: str) -> str:
    who = listener(address)
    whose = "another process" if who is None else f"process {who.pid}"
    return (
        f"device.index: {whose} serves on GPU {gpu} already: end it, add these tenants to its "
        "configuration, or name another GPU"
    )
