"""`mirage serve` as a child process, with fake or real engines, and what must be gone after it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import forked
import psutil
import warm
import yaml
from collected_lines import CollectedLines
from model_folder import make_folder

from mirage.tools.demo.models import make_models

HERE = Path(__file__).parent
DEADLINE_S = 180

WITH_FAKES = str(HERE / "with_fakes.py")
"""Script of the `mirage` command with fake engines; `AS_PROGRAM` is code that runs it."""
WARM = str(HERE / "warm.py")
"""Script of the `mirage` command with vLLM's engines, which are forks of a process that has
imported vLLM.
"""
AS_PROGRAM = f"import runpy; runpy.run_path({WITH_FAKES!r}, run_name='__main__')"


def write_config(folder: Path, *names: str, **changes: Any) -> Path:
    """Write a configuration of tenants `names` with equal shares of 64 MiB, all with one very small
    model folder. `changes` replace its keys; its path is returned.
    """
    make_folder(folder / "model")
    tenants = [
        {"name": name, "model": "model", "share": 100 // len(names), "max_model_len": 128}
        for name in names
    ]
    content = {"device": {"memory": "64MiB"}, "tenants": tenants, "dtype": "float32"} | changes
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def write_demo(
    folder: Path, which: Sequence[str], memory: str, tokens: int = 320, **changes: Any
) -> Path:
    """Write a configuration of the demo models `which` with equal shares of `memory`, in float32,
    with requests of at most `tokens` tokens.
    """
    paths = make_models(folder, which=list(which), layers=4)
    tenants = [
        {"name": name, "model": str(path), "share": 100 // len(paths), "max_model_len": tokens}
        for name, path in paths.items()
    ]
    content = {"device": {"memory": memory}, "dtype": "float32", "tenants": tenants} | changes
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    return config


class Served:
    """A running `mirage serve`. Its stderr is read after its end, or from a call of `drain` on."""

    def __init__(self, process: subprocess.Popen[str], config: Path, ready_file: Path) -> None:
        self.process = process
        self.config = config
        self.ready_file = ready_file
        self.url = ""
        self.patience_s = DEADLINE_S
        """Seconds that a request waits for the next part of its answer."""
        self._collected: CollectedLines | None = None

    @property
    def log(self) -> list[str]:
        """Lines of the server's stderr until now; `drain` has to be called before."""
        return [] if self._collected is None else self._collected.now()

    def wait_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"not ready: {self.end(signal.SIGKILL)[1]}")
            time.sleep(0.02)
        told = json.loads(self.ready_file.read_text())
        assert told["pid"] == self.process.pid
        self.url = told["url"]

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body, parsed if it is JSON."""
        with contextlib.closing(self.open(method, path, body)) as connection:
            answer = connection.getresponse()
            text = answer.read()
            kind = answer.headers.get_content_type()
            return answer.status, json.loads(text) if kind == "application/json" else text

    def open(self, method: str, path: str, body: Any = None) -> http.client.HTTPConnection:
        """A connection over which the request was sent; its answer has not been read."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.patience_s)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        return connection

    def until(self, what: str, holds: Any, timeout_s: float = DEADLINE_S) -> Any:
        """Call `holds` again and again until its result is true, and return that. Fails if the
        server ends before.
        """
        deadline = time.monotonic() + timeout_s
        while not (result := holds()):
            assert self.process.poll() is None, f"the server ended before {what}"
            assert time.monotonic() < deadline, f"waited in vain until {what}"
            time.sleep(0.05)
        return result

    def timeline(self) -> dict[str, Any]:
        """The newest page of `/mirage/timeline`, with the samples of all pages."""
        samples: list[Any] = []
        query = ""
        while True:
            status, page = self.request("GET", f"/mirage/timeline{query}")
            assert status == 200, page
            samples += page["samples"]
            if page["next_since"] is None:
                return {**page, "samples": samples}
            query = f"?since={page['next_since']!r}"

    def engine_state(self, name: str) -> str:
        return str(self.request("GET", "/mirage/state")[1]["engines"][name]["state"])

    def drain(self) -> None:
        """Collect the lines of the server's stderr from now on, so that its pipe does not fill
        up.
        """
        assert self.process.stderr is not None
        self._collected = CollectedLines(self.process.stderr.fileno())

    def engine_core(self, model: str) -> psutil.Process:
        """Process of `model`'s EngineCore: the child of its API server with most memory."""
        for server in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.ZombieProcess):  # it has ended
                if model in server.cmdline():
                    return max(server.children(), key=lambda child: child.memory_info().rss)
        raise AssertionError(f"no server of {model} is running")

    def run_folder(self) -> Path | None:
        """Folder of the engines' sockets; None before the first engine starts."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                if "--uds" in words:
                    return Path(words[words.index("--uds") + 1]).parent
        return None

    def family(self) -> set[psutil.Process]:
        """The server's process and all processes below it."""
        me = psutil.Process(self.process.pid)
        return {me, *me.children(recursive=True)}

    def runs(self, program: str) -> bool:
        """True if a process below the server's runs the Python file `program`."""
        words = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words += child.cmdline()
        return any(Path(word).name == program for word in words)

    def end(self, number: int) -> tuple[int, str]:
        """Send the signal `number`, wait for the server's end, and return exit code and stderr."""
        self.process.send_signal(number)
        if self._collected is None:
            _, stderr = self.process.communicate(timeout=DEADLINE_S)
            return self.process.returncode, stderr
        return self.process.wait(DEADLINE_S), "".join(self.log)


def read_all(answer: Any) -> bytes:
    """All bytes of an answer until it ends or breaks off."""
    read = b""
    try:
        while chunk := answer.read1():
            read += chunk
    except OSError:
        pass
    except Exception as error:
        assert type(error).__name__ == "IncompleteRead"
    return read


def assert_gone(family: set[psutil.Process], timeout_s: float = 60) -> None:
    """Check that within `timeout_s` no process of `family` is left, not even as a zombie."""
    _, alive = psutil.wait_procs(family, timeout=timeout_s)
    assert not alive, f"left behind: {alive}"


@contextlib.contextmanager
def serving(
    config: Path,
    *options: str,
    command: str = "serve",
    fake: bool = True,
    program: str | None = None,
    environment: dict[str, str] | None = None,
    ready_timeout_s: float | None = DEADLINE_S,
    stderr: int = subprocess.PIPE,
    lease_s: float = 0,
    named: Sequence[str] = (),
    passed: Sequence[int] = (),
) -> Iterator[Served]:
    """Run `mirage serve` while the block runs; before the block it has become ready, unless
    `ready_timeout_s` is None, and at the end it is killed if it still runs.

    The server is a fork of a process that has imported it, unless `program` runs the command, as
    Python code in a process of its own. If the server is killed, its engines outlive it for
    `lease_s`. `named` models are served instead of `config`. The descriptors `passed` are
    inherited.
    """
    ready_file = config.parent / "ready.json"
    ready_file.unlink(missing_ok=True)  # of a server that was killed: its reaper does so later
    how = ["-c", program] if program else [WITH_FAKES if fake else WARM]
    begin = warm.Begun if not fake else subprocess.Popen if program else forked.Begun
    usual = ["--port", "0", "--ready-file", str(ready_file), "--lease", str(lease_s)]
    words = [command, *(named or [str(config)]), *(usual if command == "serve" else []), *options]
    process = begin(
        [sys.executable, *how, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE.parent.parent}", **(environment or {})},
        cwd=config.parent,
        pass_fds=passed,
    )
    served = Served(process, config, ready_file)
    try:
        if ready_timeout_s is not None:
            served.wait_ready(ready_timeout_s)
        yield served
    finally:
        if process.poll() is None:
            process.kill()  # the reaper ends its engines
        process.wait()
