"""Several machines made of one. Each has its own network, processes, /dev/shm, home and folder of
temporary files (``TMPDIR``).

A machine is a set of Linux namespaces, which lives as long as its first process. That process ends
with the test's, and nothing has a name, so nothing is left. A switch, also a set of namespaces,
joins the networks. Neither side of it reaches anything outside.
"""

from __future__ import annotations

import ctypes
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
WHOLE, APART = "bridge", "apart"
"""Two halves of the switch, which no cable joins: machines that are cut off are in the second."""
CLONE_NEWNET = 0x40000000
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
    """Reason why namespaces cannot be made here; empty if they can."""
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"namespaces need {', '.join(lacking)}"
    told = subprocess.run(
        ["unshare", *SPACES, "--fork", "ip", "link", "add", "v", "type", "veth"],
        capture_output=True,
        text=True,
    )
    return f"no namespaces with networks: {told.stderr.strip()}" if told.returncode else ""


class Spaces:
    """Namespaces of one machine, or of the switch. `end` ends all processes in them at once."""

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
        """Command line that runs `words` inside the namespaces."""
        return ["nsenter", f"--target={self.first.pid}", *SPACES, "--", *words]

    def root(self, *words: str) -> str:
        """Run a command as root of the machine, and return its output."""
        return _done(self.entering(*words))

    def network(self, *words: str) -> None:
        """Run `ip` in the network namespace alone, so process ids in `words` are those outside."""
        _done(["nsenter", f"--target={self.first.pid}", "--net", "--", "ip", *words])

    def processes(self) -> list[psutil.Process]:
        """Processes in the namespaces, except their first one."""
        space, found = _space(self.first), []
        for one in psutil.process_iter():
            with suppress(OSError):
                if _space(one) == space and one != self.first:
                    found.append(one)
        return found

    def end(self) -> None:
        """End all processes in the namespaces. Idempotent."""
        with suppress(psutil.NoSuchProcess):
            self.first.kill()
        self._holder.wait()
        for stream in (self._holder.stdin, self._holder.stdout):
            assert stream is not None
            stream.close()


def _space(process: psutil.Process) -> str:
    """Identity of the process-id namespace of a process."""
    return str(Path(f"/proc/{process.pid}/ns/pid").readlink())


def _done(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


class NetMachine:
    """One machine in namespaces: its commands run as a user with an empty home."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        """Make the machine, with its home and its temporary files in `folder`."""
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
        """Folder of the machine's node."""
        return self.folder / "home" / ".local" / "state" / "mirage" / "node"

    def python(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python on the machine, and wait for its end."""
        return subprocess.run(
            self.spaces.entering(sys.executable, *words),
            capture_output=True,
            text=True,
            timeout=180,
            env=self._held | variables,
        )

    def mirage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of mirage on the machine, and wait for its end."""
        return self.python(WITH_FAKES, *words)

    @contextmanager
    def runs(self, *words: str) -> Iterator[RunningThere]:
        """Run a command of mirage on the machine until the block ends."""
        with self.runs_program(sys.executable, WITH_FAKES, *words) as running:
            yield running

    @contextmanager
    def runs_program(self, *words: str) -> Iterator[RunningThere]:
        """Run a program on the machine until the block ends."""
        running = RunningThere(self.spaces.entering(*words), self._held)
        try:
            yield running
        except BaseException:
            print(f"{self.name}: {' '.join(words)}:\n{running.text}")
            raise
        finally:
            running.stop()

    def enter(self) -> None:
        """Put the calling thread alone into the network of this machine."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{self.spaces.first.pid}/ns/net").open() as network:
            if libc.setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"the network of {self.name}")

    def ask(self, url: str, model: str, key: str) -> tuple[int, str]:
        """Send one request from the machine; return status and answer, or 0 and the error."""
        done = self.python("-c", ASKS, url, model, key, "0")
        _, status, text = json.loads(done.stdout)
        return status, text

    @contextmanager
    def asks(self, url: str, model: str, key: str) -> Iterator[Answers]:
        """Send requests from the machine, one after the other, while the block runs."""
        with self.runs_program(sys.executable, "-c", ASKS, url, model, key, "0.1") as running:
            yield Answers(running)

    def listening(self) -> dict[str, set[int]]:
        """TCP ports on which processes of the machine listen, by address."""
        found: dict[str, set[int]] = {}
        for line in self.spaces.root("ss", "-ltnH").splitlines():
            address, _, port = line.split()[3].rpartition(":")
            found.setdefault(address.strip("[]").removeprefix("::ffff:"), set()).add(int(port))
        return found

    def servers(self) -> set[int]:
        """Process ids of the machine's device servers, as seen from outside."""
        found = set()
        for one in self.spaces.processes():
            with suppress(psutil.Error):
                if TETHERED in " ".join(one.cmdline()):
                    found.add(one.pid)
        return found

    def logs(self) -> str:
        """Last lines of the logs of all device servers of the machine."""
        return "\n".join(
            f"{log}:\n{log.read_text()[-3000:]}" for log in self.state.glob("*/server.log")
        )


class RunningThere:
    """A command that runs on a machine, and its output so far."""

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
        reading = iter(self._entering.stdout.readline, "")
        self._reader = threading.Thread(target=lambda: self.lines.extend(reading), daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """Output of the command so far."""
        return "".join(self.lines)

    def says(self, words: str, timeout_s: float = 90.0) -> None:
        """Wait until the output contains `words`."""
        until(
            lambda: words in self.text or self._ended(words), f"{words!r}: {self.text}", timeout_s
        )

    def _ended(self, words: str) -> bool:
        assert self._entering.poll() is None, f"it ended before {words!r}: {self.text}"
        return False

    def stop(self) -> int | None:
        """Send SIGINT, kill the command if it runs on for 40 s, and return the exit code.
        Idempotent.
        """
        with suppress(psutil.Error):
            for one in psutil.Process(self._entering.pid).children():
                one.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._entering.wait(40)
        self._entering.kill()
        return self._entering.wait()

    def ended(self, timeout_s: float) -> int:
        """Wait for a command that ends by itself, and for all its output; return its exit code."""
        code = self._entering.wait(timeout_s)
        self._reader.join(timeout_s)
        return code


class NetHouse:
    """Machines m1, m2 and so on at 10.0.0.1, 10.0.0.2 and so on, joined by a switch."""

    def __init__(self, folder: Path, over: ExitStack) -> None:
        self.folder, self._over = folder, over
        self.machines: dict[str, NetMachine] = {}
        self._numbers: dict[str, int] = {}
        self._ports: dict[str, str] = {}
        """Each machine's port of the switch."""
        self._cables = count(1)
        self._switch = self._made(Spaces("switch"))
        for bridge in (WHOLE, APART):
            self._switch.network("link", "add", bridge, "type", "bridge")
            self._switch.network("link", "set", bridge, "up")

    def _made(self, spaces: Spaces) -> Spaces:
        self._over.callback(spaces.end)
        return spaces

    def machine(self, name: str) -> NetMachine:
        """Add a machine, or start one again that was lost: its files and address are the same."""
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

    def cut(self, *names: str) -> None:
        """Drop all packets between these machines and the others from now on. Those that are cut
        off reach each other.
        """
        for name in names:
            self._switch.network("link", "set", self._ports[name], "master", APART)

    def heal(self, *names: str) -> None:
        """Connect these machines to all others again."""
        for name in names:
            self._switch.network("link", "set", self._ports[name], "master", WHOLE)

    def lose(self, name: str) -> None:
        """Kill all processes of a machine at once. Its files stay."""
        self.machines.pop(name).spaces.end()


@contextmanager
def net_house(*names: str) -> Iterator[NetHouse]:
    """Machines with these names while the block runs. Skips the test if they cannot
    be made here.
    """
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
    """Answers to requests that one machine sends one after the other."""

    def __init__(self, running: RunningThere) -> None:
        self._running = running

    def since(self, begin: float) -> list[tuple[float, int]]:
        """Time (seconds since the epoch) and status of each answer since `begin`."""
        told = [json.loads(line) for line in self._running.lines]
        return [(at, status) for at, status, _ in told if at >= begin]

    def served(self, begin: float) -> int:
        """Number of answers since `begin`. Fails if one of them is not 200."""
        answers = self.since(begin)
        assert all(status == 200 for _, status in answers), answers
        return len(answers)
