"""Plain vLLM servers, with whose answers those of `mirage serve` are compared."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from left_shared import shared_files
from supervised import assert_gone
from warm import of_this_session

from mirage.processes.reaper import kill_members, remove_semaphores
from mirage.serve.launch.launcher import flags

HERE = Path(__file__).parent
START_S = 600
ENVIRONMENT = {
    "PYTHONPATH": f"{HERE.parent.parent}:{HERE}",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
ARGUMENTS = {
    "dtype": "float32",
    "block_size": 32,
    "enforce_eager": True,
    "num_gpu_blocks_override": 400,
    "kv_cache_memory_bytes": 1 << 30,
    "worker_cls": "plain_worker.PlainWorker",
}


class Plain:
    """One plain vLLM server on a Unix socket. It is a fork of the test session's warm process, so
    not a child of this one.
    """

    def __init__(self, model: Path, name: str, folder: Path, **arguments: Any) -> None:
        self._socket, self._log = folder / "s", folder / "log"
        self.patience_s = 120
        given = {"model": str(model), "served_model_name": name, "uds": str(self._socket)}
        words = ["-m", "vllm.entrypoints.openai.api_server", *flags(given | ARGUMENTS | arguments)]
        environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(folder)}
        log = str(self._log)
        pid = of_this_session().fork([sys.executable, *words], environment, log, log)
        self.process = psutil.Process(pid)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._healthy():
            said = self._log.read_text(errors="replace")[-3000:]
            assert self.process.is_running() and time.monotonic() < deadline, said
            time.sleep(0.2)

    def _healthy(self) -> bool:
        with contextlib.suppress(OSError):
            return self.request("GET", "/health")[0] == 200
        return False

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body, parsed if it is JSON."""
        connection = http.client.HTTPConnection("engine", timeout=self.patience_s)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(self.patience_s)
        with contextlib.closing(connection):
            connection.sock.connect(str(self._socket))
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            kind = answer.headers.get_content_type()
            return answer.status, json.loads(text) if kind == "application/json" else text

    def stop(self) -> None:
        """End the server. No process or file in /dev/shm of it may be left."""
        family = {self.process}
        with contextlib.suppress(psutil.NoSuchProcess):
            family |= set(self.process.children(recursive=True))
        shared = shared_files(family)
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            self.process.terminate()
            self.process.wait(20)
        # Its resource trackers tidy up /dev/shm, and end then.
        kill_members(self.process.pid, made := {})
        remove_semaphores(made)
        assert_gone(family)
        assert not [path for path in shared if path.exists()]


@contextlib.contextmanager
def plain(models: Mapping[str, Path], **arguments: Mapping[str, Any]) -> Iterator[dict[str, Plain]]:
    """Run a plain vLLM server for each of `models` while the block runs; `arguments` are vLLM's, by
    model.
    """
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder, contextlib.ExitStack() as s:
        servers = {}
        for name, path in models.items():
            own = Path(folder) / str(len(servers))
            own.mkdir()
            servers[name] = Plain(path, name, own, **arguments.get(name, {}))
            s.callback(servers[name].stop)
        for server in servers.values():
            server.wait_ready()
        yield servers
