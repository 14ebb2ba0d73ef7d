"""Machines on one: each has a network, processes, /tmp, /dev/shm and a home of its own.

A machine is a set of Linux namespaces that live as long as its first process does, and that ends
with the test's: nothing is named, so nothing is left. A switch, which is such a set too, joins the
networks. Nothing outside is reached, and nobody outside reaches them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import pytest
from supervised import HERE, WITH_FAKES
from tethered import until

NETWORK = "10.0.0"
FIRST = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children of others that ended are nobody's
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("there", flush=True)
sys.stdin.read()
"""
"""First process of a machine: it ends with its input, and all others with it."""
SPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
TETHERED = "tethered_with_fakes.py"
TOOLS = ("ip", "mount", "nsenter", "unshare")


def why_not() -> str:
    """Reason why no machine can be made here; empty if one can."""
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"namespaces need {', '.join(lacking)}"
    told = subprocess.run(
        ["unshare", *SPACES, "--fork", "ip", "link", "add", "v", "type", "veth"],
        capture_output=True,
        text=True,
    )
    return f"no namespaces with networks: {told.stderr.strip()}" if told.returncode else ""


class Spaces:
    """Namespaces of a machine or of the switch. `end` ends every process in them, at once."""

    def __init__(self, name: str) -> None:
        command = ["unshare", *SPACES, "--mount-proc", "--fork", sys.executable, "-c", FIRST]
        pipe, nobody = subprocess.PIPE, subprocess.DEVNULL
        self._holder = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=nobody, text=True, start_new_session=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline(), f"{name} was not made"
        self.first = psutil.Process(self._holder.pid).children()[0]
        self.root("hostname", name)
        self.root("ip", "link", "set", "lo", "up")

    def entering(self, *words: str) -> list[str]:
        """A command that runs there."""
        return ["nsenter", f"--target={self.first.pid}", *SPACES, "--", *words]

    def root(self, *words: str) -> str:
        """Run a command of the operator of the machine; its output."""
        return _done(self.entering(*words))

    def network(self, *words: str) -> None:
        """Run ip in the network alone: processes have the numbers that they have outside."""
        _done(["nsenter", f"--target={self.first.pid}", "--net", "--", "ip", *words])

    def processes(self) -> list[psutil.Process]:
        """All that run there, but the first."""
        space, found = _space(self.first), []
        for one in psutil.process_iter():
            with suppress(OSError):
                if _space(one) == space and one != self.first:
                    found.append(one)
        return found

    def end(self) -> None:
        """Idempotent."""
        with suppress(psutil.NoSuchProcess):
            self.first.kill()
        self._holder.wait()
        for stream in (self._holder.stdin, self._holder.stdout):
            assert stream is not None
            stream.close()


def _space(process: psutil.Process) -> str:
    """Name of the namespace that a process's number is of."""
    return str(Path(f"/proc/{process.pid}/ns/pid").readlink())


def _done(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


class NetMachine:
    """One machine: its commands are those of a user whose home is empty."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        """`folder` becomes its /tmp, and holds its home."""
        self.name, self.host, self.folder = name, f"{NETWORK}.{number}", folder
        (folder / "home").mkdir(parents=True, exist_ok=True)
        self.spaces = Spaces(name)
        self.spaces.root("mount", "--bind", str(folder), str(folder))
        self.spaces.root("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        self._held = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "RAY_"))},
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder),
            "RAY_TMPDIR": str(folder),
            "FAKE_ENGINE": "obeys",
            "PYTHONPATH": str(HERE.parents[1]),
            "COLUMNS": "200",
        }

    @property
    def state(self) -> Path:
        """Folder of the node."""
        return self.folder / "home" / ".local" / "state" / "mirage" / "node"

    def python(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python there, to its end."""
        return subprocess.run(
            self.spaces.entering(sys.executable, *words),
            capture_output=True,
            text=True,
            timeout=180,
            env=self._held | variables,
        )

    def mirage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of mirage there, to its end."""
        return self.python(WITH_FAKES, *words)

    @contextmanager
    def runs(self, *words: str) -> Iterator[RunningThere]:
        """A command of mirage runs there until the block ends."""
        with self.runs_program(sys.executable, WITH_FAKES, *words) as running:
            yield running

    @contextmanager
    def runs_program(self, *words: str) -> Iterator[RunningThere]:
        """A program runs there until the block ends."""
        running = RunningThere(self.spaces.entering(*words), self._held)
        try:
            yield running
        except BaseException:
            print(f"{self.name}: {' '.join(words)}:\n{running.text}")
            raise
        finally:
            running.stop()

    def ask(self, url: str, model: str, key: str) -> tuple[int, str]:
        """A request to a server from there: status and answer, or 0 and why there is none."""
        done = self.python("-c", ASKS, url, model, key, "0")
        _, status, text = json.loads(done.stdout)
        return status, text

    @contextmanager
    def asks(self, url: str, model: str, key: str) -> Iterator[Answers]:
        """Requests go to a server from there until the block ends."""
        with self.runs_program(sys.executable, "-c", ASKS, url, model, key, "0.1") as running:
            yield Answers(running)

    def listening(self) -> dict[str, set[int]]:
        """TCP ports that processes there listen on, by the address."""
        found: dict[str, set[int]] = {}
        for line in self.spaces.root("ss", "-ltnH").splitlines():
            address, _, port = line.split()[3].rpartition(":")
            found.setdefault(address.strip("[]").removeprefix("::ffff:"), set()).add(int(port))
        return found

    def servers(self) -> set[int]:
        """Processes of device servers, by the numbers that they have outside."""
        found = set()
        for one in self.spaces.processes():
            with suppress(psutil.Error):
                if TETHERED in " ".join(one.cmdline()):
                    found.add(one.pid)
        return found

    def logs(self) -> str:
        """Last lines of all servers of devices."""
        return "\n".join(
            f"{log}:\n{log.read_text()[-3000:]}" for log in self.state.glob("*/server.log")
        )


class RunningThere:
    """A command that runs on a machine, and what it has said."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        self._entering = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=variables,
            start_new_session=True,
        )
        self.lines: list[str] = []
        assert self._entering.stdout is not None
        self._reading = iter(self._entering.stdout.readline, "")
        threading.Thread(target=lambda: self.lines.extend(self._reading), daemon=True).start()

    @property
    def text(self) -> str:
        """All that it has said."""
        return "".join(self.lines)

    def says(self, words: str, timeout_s: float = 90.0) -> None:
        """Wait until it has said so."""
        until(
            lambda: words in self.text or self._ended(words), f"{words!r}: {self.text}", timeout_s
        )

    def _ended(self, words: str) -> bool:
        assert self._entering.poll() is None, f"it ended before {words!r}: {self.text}"
        return False

    def stop(self) -> int | None:
        """Ctrl-C; its exit code. Idempotent."""
        with suppress(psutil.Error):
            for one in psutil.Process(self._entering.pid).children():
                one.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._entering.wait(40)
        self._entering.kill()
        return self._entering.wait()

    def ended(self, timeout_s: float) -> int:
        """Exit code of one that ends by itself."""
        return self._entering.wait(timeout_s)


class NetHouse:
    """Machines m1, m2 ... at 10.0.0.1, .2 ..., joined by a switch."""

    def __init__(self, folder: Path, over: ExitStack) -> None:
        self.folder, self._over = folder, over
        self.machines: dict[str, NetMachine] = {}
        self._numbers: dict[str, int] = {}
        self._ports: dict[str, str] = {}
        """Each machine's port of the switch."""
        self._cables = count(1)
        self._switch = self._made(Spaces("switch"))
        self._switch.network("link", "add", "bridge", "type", "bridge")
        self._switch.network("link", "set", "bridge", "up")

    def _made(self, spaces: Spaces) -> Spaces:
        self._over.callback(spaces.end)
        return spaces

    def machine(self, name: str) -> NetMachine:
        """Add a machine, or start one that was lost: its disk and its address are the same."""
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        made = NetMachine(name, number, self.folder / name)
        self._made(made.spaces)
        self._ports[name] = f"p{next(self._cables)}"
        ends = "type", "veth", "peer", "name", "eth0", "address", f"02:00:00:00:00:{number:02x}"
        self._switch.network(
            *("link", "add", self._ports[name], *ends, "netns", str(made.spaces.first.pid))
        )
        self._switch.network("link", "set", self._ports[name], "up")
        made.spaces.root("ip", "address", "add", f"{made.host}/24", "dev", "eth0")
        made.spaces.root("ip", "link", "set", "eth0", "up")
        self.machines[name] = made
        self.heal(name)
        return made

    def cut(self, name: str) -> None:
        """Packets from and to a machine are lost from now on."""
        self._switch.network("link", "set", self._ports[name], "nomaster")

    def heal(self, name: str) -> None:
        """Its network is there again."""
        self._switch.network("link", "set", self._ports[name], "master", "bridge")

    def lose(self, name: str) -> None:
        """End all processes of a machine at once. Its disk stays."""
        self.machines.pop(name).spaces.end()


@contextmanager
def net_house(*names: str) -> Iterator[NetHouse]:
    """Machines of these names. Skips the test where none can be made."""
    if reason := why_not():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="n", dir="/tmp"))
    with ExitStack() as over:
        over.callback(shutil.rmtree, folder, ignore_errors=True)
        house = NetHouse(folder, over)
        for name in names:
            house.machine(name)
        try:
            yield house
        except BaseException:
            for one in house.machines.values():
                print(one.logs())
            raise


ASKS = """
import json, sys, time, urllib.error, urllib.request
url, model, key, every_s = sys.argv[1:4] + [float(sys.argv[4])]
body = json.dumps({"model": model, "prompt": "pids"}).encode()
told = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
while True:
    try:
        asked = urllib.request.Request(f"{url}/v1/completions", body, told)
        with urllib.request.urlopen(asked, timeout=3) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except OSError as error:
        status, text = 0, str(error)
    print(json.dumps([time.time(), status, text]), flush=True)
    if not every_s:
        break
    time.sleep(every_s)
"""
"""Program that asks a model: each line is a time, a status and an answer."""


class Answers:
    """Requests from one machine, one after the other."""

    def __init__(self, running: RunningThere) -> None:
        self._running = running

    def since(self, begin: float) -> list[tuple[float, int]]:
        """Time and status of each answer since then, in seconds since the epoch."""
        told = [json.loads(line) for line in self._running.lines]
        return [(at, status) for at, status, _ in told if at >= begin]

    def served(self, begin: float) -> int:
        """Number of answers since then, all of which are good ones."""
        answers = self.since(begin)
        assert all(status == 200 for _, status in answers), answers
        return len(answers)
