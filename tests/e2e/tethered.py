"""Device servers that are nobody's child: their orders, requests to them, and their ends."""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil
from operated import ROSTER
from supervised import HERE, write_config

from mirage.machines.agent import AgentOrder
from mirage.machines.tether_messages import TetherTold
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.ring import digest
from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.tethered import TetheredOrder

PROGRAM = (str(HERE / "tethered_with_fakes.py"),)
SECRET = "a secret of these tests alone"
DEADLINE_S = 90.0


def environment(short: Path) -> dict[str, str]:
    """Environment variables of an agent, which its device server inherits."""
    own = {"TMPDIR": str(short), "XDG_RUNTIME_DIR": "", "FAKE_ENGINE": "obeys"}
    return own | {"PYTHONPATH": str(HERE.parents[1])}


def order(folder: Path, device: str, *tenants: str, lease_s: float = 60.0) -> AgentOrder:
    """Order for an agent, with that for its device server and these tenants."""
    folder.mkdir(exist_ok=True)
    config = write_config(folder, "a")
    raw: dict[str, Any] = {
        "device": {"memory": "4MiB"},
        "dtype": "float32",
        "tenants": [
            {"name": name, "model": "model", "max_model_len": 128, "share": 80 // len(tenants)}
            for name in tenants
        ],
        "roster": ROSTER,
        "hang_s": 5,
    }
    record = ConfigRecord(raw, str(config), str(folder), "")
    key = AccessKey("cluster", digest(SECRET), None, admin=True, metrics=True)
    server = TetheredOrder(
        device, record, 60.0, "127.0.0.1", (key,), logging.INFO, LogFormat.TEXT, None
    )
    return AgentOrder(1, lease_s, 5.0, PROGRAM, msgspec.json.encode(server))


def ask(url: str, model: str, secret: str = SECRET) -> tuple[int, Any]:
    """Send a request to a server, and return its status and answer."""
    return posted(url, {"model": model, "prompt": "pids"}, secret)


def posted(url: str, body: dict[str, Any], secret: str) -> tuple[int, Any]:
    """Post `body` as a completion to a server; return status and answer."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)) as there:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
        there.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = there.getresponse()
        return answer.status, json.loads(answer.read())


def until(holds: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
    """Call `holds` again and again until its result is true, and return that."""
    deadline = time.monotonic() + timeout_s
    while not (result := holds()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)
    return result


def ready(told: TetherTold | None) -> TetherTold | None:
    """The answer of a device server if it says that it is ready, else None."""
    return told if told is not None and told.is_ready else None


def family(told: TetherTold, *models: str) -> set[psutil.Process]:
    """Processes of a device server and of the engines of `models`, which are asked for their
    process ids.
    """
    server = psutil.Process(told.pid)
    engines = {
        pid for model in models for pid in ask(told.url, model)[1].values() if isinstance(pid, int)
    }
    return {server, *server.children(recursive=True)} | {psutil.Process(pid) for pid in engines}


def log_of(folder: Path) -> str:
    """Log of the device servers in a folder."""
    path = folder / "server.log"
    return path.read_text() if path.exists() else f"there is no {path}"
