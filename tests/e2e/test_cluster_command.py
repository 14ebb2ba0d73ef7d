"""Two machines by commands alone: one is lost, its model goes to the other, and comes back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import yaml
from operated import ROSTER
from supervised import WITH_FAKES, assert_gone, write_config
from tethered import ask, environment, log_of, until

from mirage.doctor.node import findings
from mirage.machines.ray.node import NodeFolder, derived

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

HEAD, PORT = "127.0.0.2", 16390
TIDY = "resource_tracker", "reaper.py"


class OneMachine:
    """A machine: its folder, its address, its commands."""

    def __init__(
        self, root: Path, name: str, host: str, program: tuple[str, ...] = (WITH_FAKES,)
    ) -> None:
        """`program` is the `mirage` command, as arguments of Python."""
        self._program = sys.executable, *program
        self.name, self.host, self.folder = name, host, root / name
        self.files = root / f"t{name}"
        self.files.mkdir()
        variables = environment(self.files) | {"MIRAGE_NODE_FOLDER": str(self.folder)}
        self.variables = {**os.environ, **variables, "RAY_TMPDIR": str(root)}

    def mirage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            [*self._program, *words],
            capture_output=True,
            text=True,
            timeout=120,
            env=self.variables,
        )

    @contextmanager
    def runs(self, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
        """A command until the block ends, and its lines."""
        process = subprocess.Popen(
            [*self._program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.variables,
            start_new_session=True,
        )
        lines: list[str] = []
        assert process.stdout is not None
        reading = iter(process.stdout.readline, "")
        threading.Thread(target=lambda: lines.extend(reading), daemon=True).start()
        try:
            yield process, lines
        except BaseException:
            print("".join(lines))
            raise
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            for one in self.of_ray(process):
                with suppress(psutil.Error):
                    one.kill()
            process.kill()
            process.wait()

    def of_ray(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        """Processes of a node."""
        with suppress(psutil.Error):
            return psutil.Process(process.pid).children(recursive=True)
        return []

    def lost(self, process: subprocess.Popen[str], server: int) -> None:
        """All of its processes are killed at once, but those that tidy up /dev/shm."""
        everything = {one for one in psutil.process_iter() if is_of(one, self.files)}
        everything |= {psutil.Process(server), psutil.Process(process.pid), *self.of_ray(process)}
        for one in everything:
            with suppress(psutil.Error):
                if not any(word in " ".join(one.cmdline()) for word in TIDY):
                    one.kill()
        process.wait()


def is_of(process: psutil.Process, folder: Path) -> bool:
    """True if its temporary files lie there."""
    with suppress(psutil.Error):
        return (process.environ().get("TMPDIR") or "").startswith(str(folder))
    return False


def last_of(lines: list[str], begin: str) -> str:
    """End of the last line that begins so; empty if there is none."""
    found = [line.removeprefix(begin).strip() for line in lines if line.startswith(begin)]
    return found[-1] if found else ""


def is_served(url: str, model: str, key: str) -> bool:
    with suppress(OSError):
        return bool(url) and ask(url, model, key)[0] == 200
    return False


@pytest.fixture(name="root")
def root_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    (folder / "ray").mkdir()
    yield folder
    for one in psutil.process_iter():
        if is_of(one, folder) and one.pid != os.getpid():
            with suppress(psutil.Error):
                one.kill()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_machine_is_lost_and_comes_back(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "a")
    tenant = {"model": "model", "max_model_len": 128, "share": 40}
    told = {
        "devices": [
            {"name": "left", "machine": "m1", "memory": "4MiB"},
            {"name": "right", "machine": "m2", "memory": "4MiB"},
        ],
        "dtype": "float32",
        "tenants": [
            {"name": "a", "device": "left", **tenant},
            {"name": "b", "device": "right", **tenant},
        ],
        "roster": ROSTER,
        "hang_s": 5,
    }
    config.write_text(yaml.safe_dump(told))
    first, second = OneMachine(root, "m1", HEAD), OneMachine(root, "m2", "127.0.0.3")
    refused = first.mirage("serve", str(config), "--cluster")
    assert refused.returncode == 2 and "no secret of a cluster" in refused.stderr, refused.stderr
    with ExitStack() as over:
        words = ("node", "start", "--name", "m1", "--host", HEAD, "--port", str(PORT))
        _, lines = over.enter_context(first.runs(*words))
        until(lambda: "m1: runs\n" in lines, "the head runs")
        secret = str(NodeFolder(first.folder).secret_file)
        key = derived(NodeFolder(first.folder).secret(), "devices")
        join = ("node", "join", f"{HEAD}:{PORT}", "--name", "m2", "--host", second.host)
        node, _ = over.enter_context(second.runs(*join, "--secret", secret))
        serve = ("serve", str(config), "--cluster", "--port", "0")
        _, said = over.enter_context(first.runs(*serve))

        def address(device: str) -> str:
            return last_of(said, f"mirage: device {device!r} serves at ")

        def router(machine: str) -> str:
            return last_of(said, f"mirage: machine {machine!r} serves all models at ")

        def serves(device: str, model: str) -> bool:
            return is_served(address(device), model, key)

        def all_serve(machine: str) -> bool:
            return all(is_served(router(machine), model, key) for model in "ab")

        try:
            until(lambda: serves("left", "a") and serves("right", "b"), "both serve")
            for place in ("m1", "m2"):
                until(lambda place=place: all_serve(place), f"{place} serves both")
            assert ask(address("left"), "b", key)[0] == 404, "it waited for the other machine"
            assert ask(address("left"), "a", "another key")[0] == 401
            status = first.mirage("node", "status")
            assert status.returncode == 0, status.stderr
            assert not list(findings(NodeFolder(root / "nobody")))
            assert "machine m2 at 127.0.0.3" in status.stdout, status.stdout
            assert f"device right on m2: {address('right')}" in status.stdout, status.stdout
            pid = int(status.stdout.split("device right")[1].split("process ")[1].split(",")[0])

            second.lost(node, pid)
            begun = time.monotonic()
            until(lambda: is_served(router("m1"), "b", key), "what was lost is served elsewhere")
            print(f"machine lost: its model is served after {time.monotonic() - begun:.1f} s")
            assert serves("left", "b")
            assert serves("left", "a")
            assert all_serve("m1")

            node, _ = over.enter_context(second.runs(*join))
            until(lambda: serves("right", "b"), "it is back")
            until(lambda: ask(address("left"), "b", key)[0] == 404, "the other one gives it up")
            assert serves("left", "a")
        except BaseException:
            print("".join(said), log_of(first.folder / "left"), log_of(second.folder / "right"))
            raise
        of_servers = {
            one
            for one in psutil.process_iter()
            if is_of(one, root) and any("mirage" in word for word in one.cmdline())
        }
        for machine in (second, first):
            left = machine.mirage("node", "leave")
            assert left.returncode == 0, left
            assert "its server drains and ends" in left.stdout
    assert_gone(of_servers)
    assert not list(first.files.iterdir()) and not list(second.files.iterdir())
