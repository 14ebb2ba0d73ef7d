"""Times of cold and warm starts of the demonstration's engines, alternated.

python -m benchmarks.starts [--rounds 3] [--models opt,llama,qwen3] [--kinds cold,warm]

In a cold start an engine is a program, in a warm one a fork. Each round starts a server of either
kind from nothing. When all tenants are ready

- it ends the core of the first engine by SIGKILL;
- an operator stops that tenant, and a request starts it again.

The program prints the seconds until the server is ready; for both restarts, without the pause
before the first, the parts that the server and the engine's log tell; and the bytes that the engine
core that started last has read by system calls, beside the size of its checkpoint. The last lines
compare medians with the aims for warm starts: three tenants from nothing in 25 s, and a restart in
10 s and in a quarter of the time of a cold one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import psutil
import yaml

from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.tools.demo.models import make_models

READY = re.compile(r"mirage: (\S+): ready in \d+ s \((\w+) start: (.*)\)")
CORE = re.compile(r"mirage: start: (.*)")
PART = re.compile(r"([A-Za-z -]+) ([\d.]+) s")
ALL_S, RESTART_S, RATIO = 25.0, 10.0, 0.25
PATIENCE_S = 1200.0
WAITS = {"max_wait_s": 600}
"""Keys of each tenant: requests wait for it long enough, because a cold start beside other work may
take minutes.
"""

Parts = dict[str, float]
"""Seconds of a start, by the name of the part."""


class StartedServer:
    """`mirage serve` of a configuration, from nothing; its files are in `folder`."""

    def __init__(
        self, folder: Path, config: Path, program: Sequence[str] = ("-m", "mirage")
    ) -> None:
        """`program` are the words after Python's executable that run the command."""
        self._ready, self._said = folder / "ready.json", folder / "said"
        self._logs = folder / "logs"
        for left in (self._ready, *self._logs.glob("*.log")):
            left.unlink(missing_ok=True)
        words = ["--port", "0", "--ready-file", str(self._ready), "--log-dir", str(self._logs)]
        self.begun = time.monotonic()
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, *program, "serve", str(config), *words],
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    @property
    def url(self) -> str:
        """Address of the server, which is ready."""
        return str(json.loads(self._ready.read_text())["url"])

    def wait_ready(self) -> float:
        """Seconds from the server's start until all its tenants are ready."""
        while not self._ready.exists():
            self._patient()
        return time.monotonic() - self.begun

    def wait_started(self, name: str, starts: int) -> None:
        """Wait until a tenant has become ready `starts` times."""
        while len(self.starts(name)) < starts:
            self._patient()

    def starts(self, name: str) -> list[Parts]:
        """Parts of each start of a tenant with their seconds: the server's, and the core's, which
        lie inside these.
        """
        lines = self._said.read_text().splitlines()
        told = [match[3] for line in lines if (match := READY.match(line)) and match[1] == name]
        log = (self._logs / f"{name}.log").read_text() if told else ""
        cores = [match[1] for line in log.splitlines() if (match := CORE.search(line))]
        return [
            parted(server) | {f"core {part}": s for part, s in parted(core).items()}
            for server, core in zip(told, cores, strict=False)
        ]

    def seconds_of_starts(self, name: str) -> list[float]:
        """Seconds of each start of a tenant."""
        return [total(parts) for parts in self.starts(name)]

    def stop_and_ask(self, name: str) -> None:
        """Stop a tenant as an operator does, and then request one token of it, which starts it."""
        admin = AdminClient(Path(self.lines("--socket ")[0].rpartition("--socket ")[2].strip()))
        admin.act(name, OperatorAct.STOP)
        while admin.tenant(name).state != "stopped":
            self._patient()
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        body = {"model": name, "prompt": [5, 6, 7], "max_tokens": 1}
        with closing(http.client.HTTPConnection(parts.hostname, parts.port)) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            assert (answer := connection.getresponse()).status == 200, answer.read()

    def lines(self, words: str) -> list[str]:
        """Lines of the server's output that contain these words."""
        return [line for line in self._said.read_text().splitlines() if words in line]

    def _patient(self) -> None:
        """Wait a little. Raises `RuntimeError` if the server has ended, or `PATIENCE_S` is over."""
        if self.process.poll() is not None or time.monotonic() > self.begun + PATIENCE_S:
            raise RuntimeError(f"waited in vain: {self._said.read_text()}")
        time.sleep(0.05)


class StartRound(NamedTuple):
    """Times of one server in seconds: until all tenants are ready, and the parts of two restarts,
    after a kill and after a stop.
    """

    all_s: float
    killed: Parts
    stopped: Parts
    read: int
    """Bytes that the core which started last had read by then."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="opt,llama,qwen3")
    parser.add_argument("--kinds", default="cold,warm")
    options = parser.parse_args()
    names = options.models.split(",")
    rounds: dict[str, list[StartRound]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="mirage-starts-") as folder:
        for number in range(options.rounds):
            for kind in options.kinds.split(","):
                one = measured(Path(folder), names, warm=kind == "warm")
                rounds[kind].append(one)
                print(f"{number} {kind}: all ready {one.all_s:.1f} s", flush=True)
                print(f"  after SIGKILL: {told(one.killed)}")
                print(f"  after a stop:  {told(one.stopped)}; read {one.read / 1e6:.1f} MB")
        print(f"checkpoint of {names[0]}: {checkpoint(Path(folder), names[0]) / 1e6:.1f} MB")
    summary(rounds, len(names))


def measured(folder: Path, names: list[str], *, warm: bool) -> StartRound:
    """Measure one server from nothing, and two restarts of its first engine."""
    with StartedServer(folder, written(folder, names, warm=warm)) as server:
        all_s = server.wait_ready()
        core_of(server.process.pid, names[0]).kill()
        server.wait_started(names[0], 2)
        server.stop_and_ask(names[0])
        server.wait_started(names[0], 3)
        read = read_bytes(core_of(server.process.pid, names[0]))
        _, killed, stopped = server.starts(names[0])
        return StartRound(all_s, killed, stopped, read)


def summary(rounds: dict[str, list[StartRound]], count: int) -> None:
    """Print medians of both kinds beside the aims."""
    first = {kind: statistics.median(r.all_s for r in some) for kind, some in rounds.items()}
    print(f"medians, {count} tenants from nothing: {worded(first)} (aim warm {ALL_S:g} s)")
    for name in ("killed", "stopped"):
        again = {
            kind: statistics.median(total(getattr(r, name)) for r in some)
            for kind, some in rounds.items()
        }
        both = again.keys() == {"cold", "warm"}
        ratio = f", ratio {again['warm'] / again['cold']:.2f}" if both else ""
        aims = f"aims {RESTART_S:g} s, {RATIO:g}"
        print(f"restart of one that was {name}: {worded(again)}{ratio} ({aims})")


def worded(seconds: dict[str, float]) -> str:
    """Seconds of each kind as text, such as ``"cold 30.1 s, warm 4.2 s"``."""
    return ", ".join(f"{kind} {s:.1f} s" for kind, s in seconds.items())


def told(parts: Parts) -> str:
    """Text of a start's seconds and their parts; the core's parts are inside the server's."""
    return f"{total(parts):.1f} s ({', '.join(f'{part} {s:.1f}' for part, s in parts.items())})"


def total(parts: Parts) -> float:
    """Seconds of a start: the sum of the server's parts."""
    return sum(seconds for part, seconds in parts.items() if not part.startswith("core "))


def parted(words: str) -> Parts:
    """Parts of a text, as ``{"server": 3.8}`` of ``"server 3.8 s"``."""
    return {part.strip(): float(seconds) for part, seconds in PART.findall(words)}


def written(folder: Path, names: list[str], *, warm: bool) -> Path:
    """Write a configuration of these models with 90 MiB, as in `configs/demo.yaml`; returns its
    path.
    """
    paths = make_models(folder, which=names)
    tenants = [
        {"name": name, "model": str(path), "share": "auto", "max_model_len": 320, **WAITS}
        for name, path in paths.items()
    ]
    content = {"device": {"memory": "90MiB"}, "dtype": "float32", "tenants": tenants}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content | {"warm_starts": warm}))
    return path


def checkpoint(folder: Path, name: str) -> int:
    """Bytes of the file with a model's weights."""
    (model,) = make_models(folder, which=[name]).values()
    return (model / "model.safetensors").stat().st_size


def core_of(server: int, name: str) -> psutil.Process:
    """Engine core of a tenant: the largest child of its API server. Raises `LookupError` if the
    server has no child of that name."""
    for child in psutil.Process(server).children():
        if name in child.cmdline():
            return max(child.children(), key=lambda process: process.memory_info().rss)
    raise LookupError(json.dumps([c.cmdline() for c in psutil.Process(server).children()]))


def read_bytes(process: psutil.Process) -> int:
    """Bytes that a process has read by system calls."""
    return int(process.io_counters().read_chars)


if __name__ == "__main__":
    main()
