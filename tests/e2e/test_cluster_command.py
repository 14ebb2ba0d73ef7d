"""Two machines run by commands alone: one is lost, its model moves to the other, and returns."""

from __future__ import annotations

import os
import shutil
import signal
import socket as socketlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from loopback import HEAD, PORT, SECOND
from operated import ROSTER
from supervised import WITH_FAKES, assert_gone, write_config
from tethered import ask, environment, log_of, until

from mirage.doctor.node import findings
from mirage.machines.ray.node import NodeFolder, derived
from mirage.serve.access.ring import digest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.one_of("clusters"),
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

TIDY = "resource_tracker", "reaper.py"


class OneMachine:
    """A machine of the cluster on this host: its folder, its address, and commands
    run as if on it.
    """

    def __init__(
        self, root: Path, name: str, host: str, program: tuple[str, ...] = (WITH_FAKES,)
    ) -> None:
        """`program` has the arguments with which Python runs `mirage`."""
        self._program = sys.executable, *program
        self.name, self.host, self.folder = name, host, root / name
        self.files = root / f"t{name}"
        self.files.mkdir()
        variables = environment(self.files) | {"MIRAGE_NODE_FOLDER": str(self.folder)}
        self.variables = {**os.environ, **variables, "RAY_TMPDIR": str(root)}

    def mirage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command and wait for its end."""
        return subprocess.run(
            [*self._program, *words],
            capture_output=True,
            text=True,
            timeout=120,
            env=self.variables,
        )

    @contextmanager
    def runs(self, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
        """Run a command until the block ends, and collect its lines."""
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
        """All processes below that of a node, which are Ray's."""
        with suppress(psutil.Error):
            return psutil.Process(process.pid).children(recursive=True)
        return []

    def lost(self, process: subprocess.Popen[str], server: int) -> None:
        """Kill all processes of the machine at once, except those that clean up /dev/shm. `process`
        is its node, `server` its device server.
        """
        everything = {one for one in psutil.process_iter() if is_of(one, self.files)}
        everything |= {psutil.Process(server), psutil.Process(process.pid), *self.of_ray(process)}
        for one in everything:
            with suppress(psutil.Error):
                if not any(word in " ".join(one.cmdline()) for word in TIDY):
                    one.kill()
        process.wait()


def is_of(process: psutil.Process, folder: Path) -> bool:
    """True if a process has its temporary files in `folder`."""
    with suppress(psutil.Error):
        return (process.environ().get("TMPDIR") or "").startswith(str(folder))
    return False


def servers_in(root: Path) -> set[psutil.Process]:
    """Processes of MIRAGE whose files are in the folder `root`."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile
            if is_of(process, root) and any("mirage" in word for word in process.cmdline()):
                found.add(process)
    return found


def last_of(lines: list[str], begin: str) -> str:
    """Rest of the last line that begins with `begin`; empty if there is none."""
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


def two_machines() -> dict[str, Any]:
    """Content of a configuration with one device and one model on each of two machines."""
    tenant = {"model": "model", "max_model_len": 128, "share": 40}
    return {
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


@pytest.mark.rare
def test_a_machine_is_lost_and_comes_back(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "a")
    told = two_machines()
    config.write_text(yaml.safe_dump(told))
    first, second = OneMachine(root, "m1", HEAD), OneMachine(root, "m2", SECOND)
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
            assert f"machine m2 at {SECOND}" in status.stdout, status.stdout
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
        of_servers = servers_in(root)
        for machine in (second, first):
            left = machine.mirage("node", "leave")
            assert left.returncode == 0, left
            assert "its server drains and ends" in left.stdout
    assert_gone(of_servers)
    assert not list(first.files.iterdir()) and not list(second.files.iterdir())


def test_keys_and_limits_change_at_all_machines_while_they_serve(
    root: Path, tmp_path: Path
) -> None:
    """Keys and limits are replaced while both machines serve. Requests with a key that stays go on;
    a machine that was cut off meanwhile gets the new keys when it is back.
    """
    config, keys = write_config(tmp_path, "a"), tmp_path / "keys.yaml"
    told = two_machines() | {"placement": {"off": True}}

    def write(*secrets: str, **http: int) -> None:
        config.write_text(yaml.safe_dump(told | {"http": http}))
        own = [{"name": s, "sha256": digest(s), "models": "all"} for s in secrets]
        keys.touch(0o600)
        keys.write_text(yaml.safe_dump({"keys": own}))

    write("kept", "revoked")
    first, second = OneMachine(root, "m1", HEAD), OneMachine(root, "m2", SECOND)
    with ExitStack() as over:
        words = ("node", "start", "--name", "m1", "--host", HEAD, "--port", str(PORT))
        _, lines = over.enter_context(first.runs(*words))
        until(lambda: "m1: runs\n" in lines, "the head runs")
        secret = str(NodeFolder(first.folder).secret_file)
        join = ("node", "join", f"{HEAD}:{PORT}", "--name", "m2", "--host", second.host)
        node, _ = over.enter_context(second.runs(*join, "--secret", secret))
        serve = ("serve", str(config), "--cluster", "--keys", str(keys), "--port")
        with closing(socketlib.create_server((second.host, 0))) as free:
            own = str(free.getsockname()[1])
        controller, said = over.enter_context(first.runs(*serve, own))
        names = [f"machine {m!r} serves all models at " for m in ("m1", "m2")]
        names += [f"device {d!r} serves at " for d in ("left", "right")]

        def url(name: str) -> str:
            return last_of(said, f"mirage: {name}")

        def status(name: str, key: str) -> int:
            model = "b" if "right" in name else "a"
            with suppress(OSError):
                return ask(url(name), model, key)[0]
            return 0

        try:
            until(lambda: all(map(url, names)), "all have addresses")
            for name in names:
                until(lambda name=name: status(name, "kept") == 200, f"{name} answers")
                assert status(name, "revoked") == 200
            socket = last_of(said, "mirage: operators: --socket ")
            with asked(url(names[0]), "b", "kept"), asked(url(names[1]), "a", "kept"):
                write("kept", "new", body_s=20)
                controller.send_signal(signal.SIGHUP)
                until(lambda: "http.body_s: changed, at once" in "".join(said), "it is applied")
                for name in names:
                    assert (status(name, "revoked"), status(name, "new")) == (401, 200), name
                write("kept", body_s=20)
                done = first.mirage("keys", "reload", "--socket", socket)
                assert done.returncode == 0 and "keys: 1 of" in done.stdout, done
                for name in names:
                    assert (status(name, "new"), status(name, "kept")) == (401, 200), name
                write("kept", body_s=30)
                done = first.mirage("apply", "-f", str(config), "--socket", socket)
                assert done.stdout == "http.body_s: changed, at once\n", done
                done = first.mirage("ps", "--socket", socket)
                assert done.returncode == 0 and "right" in done.stdout, done
                told["hang_s"] = 6
                write("kept", body_s=30)
                done = first.mirage("apply", "-f", str(config), "--socket", socket)
                assert done.returncode == 1 and "hang_s cannot change" in done.stderr, done
                told["hang_s"] = 5

                other, _ = over.enter_context(first.runs(*serve, "9"))
                other.wait(60)
                assert other.returncode == 1, "its --port is another one"
                assert controller.poll() is None

            old: set[psutil.Process] = set()
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if is_of(process, second.files) and any(
                        "router@m2" in w for w in process.cmdline()
                    ):
                        old |= {process, *process.children(recursive=True)}
                        process.kill()
            assert old
            assert_gone(old)
            until(lambda: status(names[1], "kept") == 200, "another router serves on m2")
            assert (status(names[1], "new"), status(names[1], "revoked")) == (401, 401)

            for process in (*second.of_ray(node), psutil.Process(node.pid)):
                with suppress(psutil.Error):
                    process.kill()
            until(lambda: "away" in "".join(said) or lost(first), "m2 is missed")
            write("later", body_s=30)
            done = first.mirage("keys", "reload", "--socket", socket)
            assert "machine m2, device right: away, and will hear of it" in done.stdout, done
            assert (status(names[0], "later"), status(names[0], "kept")) == (200, 401)
            assert (status(names[1], "later"), status(names[1], "kept")) == (401, 200)
            over.enter_context(second.runs(*join))
            until(lambda: status(names[1], "later") == 200, "m2 hears of it")
            assert status(names[1], "kept") == 401
            until(lambda: status(names[3], "later") == 200, "and its device")
            assert status(names[3], "kept") == 401
        except BaseException:
            print("".join(said), log_of(first.folder / "left"), log_of(second.folder / "right"))
            for folder in root.glob("m?/router@*"):
                print(folder.name, log_of(folder))
            raise
        of_servers = servers_in(root)
        for machine in (second, first):
            assert machine.mirage("node", "leave").returncode == 0
    assert_gone(of_servers)


def lost(machine: OneMachine) -> bool:
    return "machine m2 at" not in machine.mirage("node", "status").stdout


@contextmanager
def asked(url: str, model: str, key: str) -> Iterator[None]:
    """Send requests one after the other while the block runs; each must be answered with 200."""
    answers: list[object] = []
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            try:
                answers.append(ask(url, model, key)[0])
            except OSError as error:
                answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert answers and {*answers} == {200}, {*map(str, answers)}
