"""A real server with fake engines, and an operator who uses its admin socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import forked
import yaml
from supervised import DEADLINE_S, HERE, WITH_FAKES, Served, serving, write_config

ROSTER = {"busy_s": 0.0, "patience_s": 0.0, "drain_s": 0.2, "worth": 0.0}
LIMIT_S = 120
QUIET = ("--log-level", "error")


def tenant(name: str, **keys: Any) -> dict[str, Any]:
    own = {"name": name, "model": "model", "max_model_len": 128, "share": 40}
    return own | {"start": "on_request"} | keys


def content(*names: str, **changes: Any) -> dict[str, Any]:
    tenants = [tenant(name) for name in names]
    device = {"memory": "4MiB"}
    return {"device": device, "dtype": "float32", "tenants": tenants, "roster": ROSTER} | changes


class Operated:
    """A running server, and commands of its operator."""

    def __init__(self, server: Served, short: Path) -> None:
        self.server, self.short = server, short

    @property
    def address(self) -> Path:
        """Socket of the server for operators. Folders of other processes beside it come and go."""
        sockets: list[Path] = []
        for folder in self.short.glob("mirage-*"):
            with suppress(FileNotFoundError):
                sockets += folder.glob("admin-*.sock")
        (address,) = sockets
        return address

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
        """Send a request to the admin socket; return status, parsed body and headers."""
        address = self.address
        connection = http.client.HTTPConnection("admin", timeout=LIMIT_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(address))
        text = body if isinstance(body, str | None) else json.dumps(body)
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        return answer.status, told, answer.headers

    def apply(self, told: dict[str, Any], query: str = "", **headers: str) -> dict[str, Any]:
        """Apply a configuration, which must be accepted; return the answer."""
        status, answer, _ = self.ask("PUT", f"/config?{query}", told, **headers)
        assert status == 200, answer
        return answer

    @contextmanager
    def applying(self, told: dict[str, Any]) -> Iterator[Future[dict[str, Any]]]:
        """Begin to apply a configuration in a thread, and give the future of the answer to the
        block.
        """
        with ThreadPoolExecutor(1) as thread:
            yield thread.submit(self.apply, told)

    def complete(self, name: str, prompt: str = "pids") -> tuple[int, dict[str, Any]]:
        body = {"model": name, "prompt": prompt}
        return self.server.request("POST", "/v1/completions", body)

    def names(self) -> list[str]:
        return [one["name"] for one in self.ask("GET", "/tenants")[1]["tenants"]]

    def state(self, name: str) -> str:
        return str(self.ask("GET", f"/tenants/{name}")[1].get("state", "absent"))

    def until(self, holds: Callable[[], Any]) -> None:
        self.server.until("it is so", holds, LIMIT_S)

    def mirage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an operator's command."""
        return mirage(self.short, *words, folder=self.server.config.parent)


def around(short: Path) -> dict[str, str]:
    return {"TMPDIR": str(short), "XDG_RUNTIME_DIR": "", "FAKE_ENGINE": "obeys", "COLUMNS": "200"}


def mirage(
    short: Path, *words: str | Path, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an operator's command in the server's environment."""
    return forked.run(
        [WITH_FAKES, *map(str, words)],
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), **around(short)},
        cwd=folder,
    )


@contextmanager
def operated(
    folder: Path, short: Path, told: dict[str, Any], *options: str, **variables: str
) -> Iterator[Operated]:
    """Run a server with fake engines while the block runs; `variables` of its environment say how
    they behave.
    """
    folder.mkdir(exist_ok=True)
    config = write_config(folder, "a")
    config.write_text(yaml.safe_dump(told))
    environment = around(short) | variables
    with serving(config, *QUIET, *options, environment=environment) as server:
        server.drain()
        yield Operated(server, short)
