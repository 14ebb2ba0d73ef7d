"""Server of a benchmark: `mirage serve` as a command, its address and its operators' socket."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mirage.serve.admin.address import listening

MIRAGE = sys.executable, "-m", "mirage"
READY_S = 900.0
"""Longest time in seconds until a server is ready."""


class ServedCommand(NamedTuple):
    """A server that is ready: its process, its address, its operators' socket."""

    pid: int
    url: str
    socket: Path


@contextmanager
def serving(
    config: Path,
    program: Sequence[str] = MIRAGE,
    environment: Mapping[str, str] | None = None,
    *,
    options: Sequence[str] = (),
    ready_s: float = READY_S,
) -> Iterator[ServedCommand]:
    """Run a server of `config` while the block runs; gives its process, address and socket. Log and
    ready file lie beside `config`. Without `environment` it has this process's.

    Raises `SystemExit` with the log if the server ends, or is not ready in `ready_s` seconds.
    """
    ready, log = config.parent / "ready.json", config.parent / "log"
    words = [
        "serve",
        str(config),
        "--port",
        "0",
        "--ready-file",
        str(ready),
        "--lease",
        "0",
        *options,
    ]
    with log.open("w") as output:
        process = subprocess.Popen([*program, *words], stderr=output, env=environment)
    try:
        until = time.monotonic() + ready_s
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        (socket,) = (path for path, who in listening().items() if who.pid == process.pid)
        yield ServedCommand(process.pid, json.loads(ready.read_text())["url"], socket)
    finally:
        process.terminate()
        process.wait()
