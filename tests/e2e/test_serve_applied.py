"""SIGHUP to a server: the file is applied, the state is kept, or the terminal was closed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psutil
import pytest
import yaml
from operated import LIMIT_S, Operated, around, content, operated, tenant
from supervised import HERE, WITH_FAKES, write_config

pytestmark = pytest.mark.e2e


def write(site: Operated, told: dict[str, object]) -> None:
    site.server.config.write_text(yaml.safe_dump(told))


def logged(site: Operated, words: str) -> None:
    site.until(lambda: any(words in line for line in site.server.log))


def test_sighup_applies_the_file(tmp_path: Path, short: Path) -> None:
    with operated(tmp_path / "s", short, content("a", "b")) as site:
        write(site, content("a", "c"))
        site.server.process.send_signal(signal.SIGHUP)
        site.until(lambda: site.names() == ["a", "c"])
        logged(site, "config.yaml: c: added")
        write(site, content("a") | {"policy": "static"})
        site.server.process.send_signal(signal.SIGHUP)
        logged(site, "SIGHUP: nothing is applied: policy cannot change")
        write(site, {"tenants": 1})
        site.server.process.send_signal(signal.SIGHUP)
        logged(site, "SIGHUP: nothing is applied: ")
        assert site.names() == ["a", "c"]
        assert site.server.end(signal.SIGTERM)[0] == 0


# -- terminals ---------------------------------------------------------------------------


class InTerminal:
    """A program with a controlling terminal that the test can close, as the end of an ssh session
    does.
    """

    def __init__(self, words: list[str], folder: Path, short: Path) -> None:
        self.ready_file, self._folder = folder / "ready.json", folder
        master, slave = os.openpty()
        self.master = master
        self.leader = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), **around(short)},
            cwd=folder,
        )
        os.close(slave)

    def type(self, words: str) -> None:
        os.write(self.master, f"{words}\n".encode())

    def server(self) -> psutil.Process:
        """Process of the server, once that is ready."""
        deadline = time.monotonic() + LIMIT_S
        while not self.ready_file.exists():
            assert time.monotonic() < deadline
            self.read()
            time.sleep(0.05)
        return psutil.Process(json.loads(self.ready_file.read_text())["pid"])

    def read(self) -> None:
        """Read what is in the terminal, which must not fill up."""
        os.set_blocking(self.master, False)
        with suppress(BlockingIOError):
            os.read(self.master, 1 << 16)

    def close(self) -> None:
        os.close(self.master)


@contextmanager
def in_terminal(folder: Path, short: Path, before: list[str]) -> Iterator[InTerminal]:
    """Run a server in a terminal while the block runs. `before` is the command line of a shell that
    starts it; without that the server is the terminal's first program.
    """
    folder.mkdir()
    config = write_config(folder, "a")
    config.write_text(yaml.safe_dump(content("a", "b")))
    words = before or [sys.executable, WITH_FAKES, *SERVE]
    running = InTerminal(words, folder, short)
    try:
        yield running
    finally:
        running.leader.kill()
        running.leader.wait()


SERVE = ["serve", "config.yaml", "--port", "0", "--ready-file", "ready.json"]
SHELL = ["bash", "--norc", "--noprofile", "-i"]
AT_SHELL = f"{sys.executable} {WITH_FAKES} {' '.join(SERVE)}"


def ends(process: psutil.Process) -> bool:
    try:
        process.wait(LIMIT_S)
    except psutil.TimeoutExpired:
        return False
    return True


def test_a_server_ends_with_its_terminal(tmp_path: Path, short: Path) -> None:
    with in_terminal(tmp_path / "s", short, []) as terminal:
        server = terminal.server()
        terminal.close()
        assert terminal.leader.wait(LIMIT_S) == 0
        assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("background", ["", " &"])
def test_a_server_ends_with_the_terminal_of_its_shell(
    tmp_path: Path, short: Path, background: str
) -> None:
    with in_terminal(tmp_path / "s", short, SHELL) as terminal:
        terminal.type(AT_SHELL + background)
        server = terminal.server()
        terminal.close()
        assert ends(server)


def test_nohup_keeps_a_server_from_its_terminals_end(tmp_path: Path, short: Path) -> None:
    with in_terminal(tmp_path / "s", short, SHELL) as terminal:
        terminal.type(f"nohup {AT_SHELL} &")
        server = terminal.server()
        terminal.close()
        terminal.leader.wait(LIMIT_S)
        server.send_signal(signal.SIGHUP)
        time.sleep(1.5)  # for a signal that would end it
        assert server.is_running() and terminal.ready_file.exists()
        server.terminate()
        assert ends(server)


def test_sighup_of_a_person_at_the_terminal_ends_nothing(tmp_path: Path, short: Path) -> None:
    with in_terminal(tmp_path / "s", short, SHELL) as terminal:
        terminal.type(f"{AT_SHELL} 2> said.txt &")
        server = terminal.server()
        terminal.type("kill -HUP %1")
        deadline = time.monotonic() + LIMIT_S
        while "SIGHUP: " not in (tmp_path / "s" / "said.txt").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert server.is_running()
        server.terminate()
        assert ends(server)


# -- the state file ----------------------------------------------------------------------


def test_what_was_applied_outlives_the_server(tmp_path: Path, short: Path) -> None:
    folder, told = tmp_path / "s", content("a", "b")
    state = tmp_path / "state.json"
    keeps = ("--state", str(state))
    with operated(folder, short, told, *keeps) as site:
        assert not state.exists()
        wanted = content("a", "c")
        wanted["tenants"][0]["engine_args"] = {"seed": 3}
        site.apply(wanted)
        assert state.stat().st_mode & 0o777 == 0o600
        site.until(lambda: site.names() == ["a", "c"])
        assert site.server.end(signal.SIGTERM)[0] == 0
    with operated(folder, short, told, *keeps) as site:
        logged(site, f"{state} counts: it was applied after")
        assert site.names() == ["a", "c"]
        assert site.ask("GET", "/config")[1]["configuration"] == wanted
        assert site.mirage("tenants", "set", "c", "priority=1").returncode == 0
    with operated(folder, short, told, *keeps) as site:
        assert site.names() == ["a", "c"]
        assert site.ask("GET", "/tenants/c")[1]["spec"]["priority"] == 1
    changed = content("a", "e")
    with operated(folder, short, changed, *keeps) as site:
        logged(site, "config.yaml counts, and what operators applied beside it does not")
        assert site.names() == ["a", "e"]


def test_applies_of_the_file_itself_need_no_words(tmp_path: Path, short: Path) -> None:
    folder, keeps = tmp_path / "s", ("--state", str(tmp_path / "state.json"))
    changed = content("a", "b", "c")
    with operated(folder, short, content("a"), *keeps) as site:
        write(site, changed)
        assert site.mirage("apply", "-f", "config.yaml").returncode == 0
    with operated(folder, short, changed, *keeps) as site:
        assert site.names() == ["a", "b", "c"]
        assert not any("counts" in line for line in site.server.log)


def test_a_state_that_is_none_is_refused_in_one_line(tmp_path: Path, short: Path) -> None:
    config = write_config(tmp_path, "a")
    (tmp_path / "state.json").write_text('{"form": 1')
    done = subprocess.run(
        [sys.executable, WITH_FAKES, "serve", str(config), "--state", str(tmp_path / "state.json")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), **around(short)},
        check=False,
    )
    assert done.returncode == 2 and "remove it, and the configuration file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_is_killed_leaves_the_old_state_or_the_new(
    tmp_path: Path, short: Path
) -> None:
    rng = Random(seed := int(os.environ.get("MIRAGE_TEST_SEED") or time.time()))
    print(f"seed {seed}")
    told, state = content("a"), tmp_path / "state.json"
    before = ["a"]
    for _ in range(4):
        with operated(tmp_path / "s", short, told, "--state", str(state)) as site:
            assert sorted(site.names()) == sorted(before)
            wanted = content("a", *rng.sample("bcde", 2))
            names = [one["name"] for one in wanted["tenants"]]
            killer = subprocess.Popen(
                ["sh", "-c", f"sleep {rng.uniform(0, 0.12):.3f}; kill -9 {site.server.process.pid}"]
            )
            try:
                site.ask("PUT", "/config", wanted)
            except (OSError, ValueError):
                pass
            except Exception as error:  # of http.client, whatever it read
                assert "http.client" in type(error).__module__
            killer.wait()
            site.server.process.wait()
        kept = json.loads(state.read_text())["configuration"] if state.exists() else told
        after = [one["name"] for one in kept["tenants"]]
        assert after in (before, names)
        before = after


WRITES = """
import sys
from pathlib import Path
from mirage.serve.apply.source import Written
from mirage.serve.apply.state_file import StateFile
state = StateFile(Path(sys.argv[1]))
print("begins", flush=True)
while True:
    for letter in "xy":
        raw = {"all": [letter * 100] * 2000}
        state.write(Written(raw, Path("f"), Path("/")), letter)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_the_old_state_or_the_new(tmp_path: Path) -> None:
    rng, state = Random(1), tmp_path / "state.json"
    for _ in range(15):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(state)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        )
        assert writer.stdout is not None and writer.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.05))
        writer.kill()
        writer.communicate()
        if state.exists():
            told = json.loads(state.read_text())
            assert told["configuration"] == {"all": [told["sha256"] * 100] * 2000}
    assert state.exists()
    assert len(list(tmp_path.iterdir())) <= 2, "a file that was not finished is written again"


@pytest.mark.slow
def test_random_applies_end_as_the_last_one_says(tmp_path: Path, short: Path) -> None:
    rng = Random(seed := int(os.environ.get("MIRAGE_TEST_SEED") or time.time()))
    print(f"seed {seed}")
    with operated(tmp_path / "s", short, content("a")) as site:
        for _ in range(25):
            names = ["a", *rng.sample("bcde", rng.randint(0, 4))]
            wanted = content()
            wanted["tenants"] = [
                tenant(
                    name,
                    share=rng.choice([30, 40]),
                    start=rng.choice(["eager", "on_request"]),
                    priority=rng.randint(0, 2),
                )
                for name in names
            ]
            site.apply(wanted, f"drain_s={rng.choice([0, 1])}")
            if rng.random() < 0.5:
                site.complete(rng.choice("abcde"), rng.choice(["pids", "wait"]))
        site.until(lambda: sorted(site.names()) == sorted(names))
        for one in wanted["tenants"]:
            assert site.complete(one["name"])[0] == 200
            spec = site.ask("GET", f"/tenants/{one['name']}")[1]["spec"]
            assert (spec["share_percent"], spec["priority"]) == (one["share"], one["priority"])
        assert site.server.process.poll() is None
        family = site.server.family()
        assert site.server.end(signal.SIGTERM)[0] == 0
    _, alive = psutil.wait_procs(family, timeout=LIMIT_S)
    assert not alive
