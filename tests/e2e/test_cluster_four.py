"""Failures in clusters of three and four machines, one at a time and two at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from many_machines import LONG_S, written
from ray_house import SECRET, RayHouse, ray_house
from supervised import WITH_FAKES, assert_gone
from test_cluster_command import is_of
from test_cluster_heads import Asker
from tethered import ask, posted, until

from mirage.machines.ray.node import derived

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

KEY = derived(SECRET, "devices")
KNOWN_S = 5.0
"""Seconds within which a controller hears of requests that have ended."""


class FourMachines:
    """Four machines that serve all models. The controller is a process of its own."""

    def __init__(self, house: RayHouse, config: Path, machines: int, over: ExitStack) -> None:
        self.house, self._config, self._over = house, config, over
        self.numbers = range(1, machines + 1)
        house.is_node()
        self.lines: list[str] = []
        self.controller = self.controls()
        for machine in (1, 2):
            for number in self.numbers:
                reaches = lambda m=machine, n=number: self.serves(m, n)  # noqa: E731
                until(reaches, f"m{machine} reaches model{number}", LONG_S)
        self.measured: dict[str, str] = {}

    def controls(self) -> subprocess.Popen[str]:
        """Start a controller, and wait until it reaches all device servers and routers; return its
        process.
        """
        words = ["serve", str(self._config), "--cluster", "--port", "0"]
        process = subprocess.Popen(
            [sys.executable, WITH_FAKES, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(os.environ),
        )
        self._over.callback(self.ends, process)
        lines = self.lines = []
        assert process.stdout is not None
        reading = iter(process.stdout.readline, "")
        threading.Thread(target=lambda: lines.extend(reading), daemon=True).start()
        for number in self.numbers:
            until(lambda n=number: self.url(f"machine 'm{n}' serves all models"), "", LONG_S)
            until(lambda n=number: self.url(f"device 'd{n}' serves"), "", LONG_S)
        return process

    def ends(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()

    def url(self, words: str) -> str:
        """Address that the controller printed last after `words`; empty before that."""
        found = re.findall(f"mirage: {words} at (\\S+)", "".join(self.lines))
        return found[-1] if found else ""

    def router(self, machine: int) -> str:
        return self.url(f"machine 'm{machine}' serves all models")

    def serves(self, machine: int, model: int) -> bool:
        """True if the router of a machine answers a request for a model."""
        with suppress(OSError):
            return ask(self.router(machine), f"model{model}", KEY)[0] == 200
        return False

    def is_at(self, device: int, model: int) -> bool:
        """True if the server of a device serves a model."""
        with suppress(OSError):
            return ask(self.url(f"device 'd{device}' serves"), f"model{model}", KEY)[0] == 200
        return False

    @contextmanager
    def row(self, what: str, models: Sequence[int] = ()) -> Iterator[None]:
        """Context of one failure named `what`. The routers of m1 and m2 are sent requests for
        `models` (all if empty) while it lasts; each must be answered, and each model's by the same
        processes.
        """
        askers = [
            Asker(self.router(machine), f"model{model}", KEY)
            for machine in (1, 2)
            for model in (models or self.numbers)
        ]
        begun = time.monotonic()
        try:
            yield
        finally:
            for one in askers:
                one.end()
        seconds = time.monotonic() - begun
        assert not [one.wrong for one in askers if one.wrong], what
        assert all(one.pids and len({*map(str, one.pids)}) == 1 for one in askers), what
        count = sum(len(one.pids) for one in askers)
        self.measured[what] = f"{seconds:.1f} s, {count} requests, all answered"

    def names(self) -> set[str]:
        return {one.name for one in self.house.do(self.house.machines.there())}


def processes_of(four: FourMachines, number: int) -> set[psutil.Process]:
    """All processes of a machine: its raylet, device server and router, with their children."""
    house = four.house
    device, router = (house.ready(name) for name in (f"d{number}", f"router@m{number}"))
    roots = [psutil.Process(device.pid), psutil.Process(router.pid), house.raylet(f"m{number}")]
    engines = ask(four.url(f"device 'd{number}' serves"), f"model{number}", KEY)[1].values()
    found = {psutil.Process(pid) for pid in engines if isinstance(pid, int)}
    return found.union(roots, *(one.children(recursive=True) for one in roots))


def lose(four: FourMachines, *numbers: int) -> None:
    """Kill all processes of these machines at once, except the reapers, which clean up."""
    everything = [one for number in numbers for one in processes_of(four, number)]
    for one in everything:
        with suppress(psutil.Error):
            if not any("reaper.py" in word for word in one.cmdline()):
                one.kill()
    for number in numbers:
        four.house.nodes[f"m{number}"].all_processes["raylet"][0].process.wait()


@pytest.mark.parametrize("machines", [3, 4])
def test_each_failure_leaves_what_serves_and_two_at_once_are_made_up_for(
    machines: int, tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_house(short, machines, monkeypatch) as house, ExitStack() as over:
        over.callback(end_left, short)
        four = FourMachines(house, written(tmp_path, machines), machines, over)
        try:
            failures(four, machines)
        except BaseException:
            print("".join(four.lines))
            raise
        finally:
            for what, measured in four.measured.items():
                print(f"{machines} machines, {what}: {measured}")
        servers = {one for n in four.numbers for one in processes_of(four, n) if is_server(one)}
        four.ends(four.controller)
        house.machines.epoch = 99
        for number in four.numbers:
            for name in (f"d{number}", f"router@m{number}"):
                house.do(house.machines.end(name))
        assert_gone(servers)
    assert not list(short.iterdir())


def end_left(folder: Path) -> None:
    """Kill servers that a failed test left, which are found by their temporary files."""
    for one in psutil.process_iter():
        if is_of(one, folder) and is_server(one) and one.pid != os.getpid():
            with suppress(psutil.Error):
                one.kill()


def is_server(process: psutil.Process) -> bool:
    """True for a process of ours, False for one of Ray's."""
    return "ray" not in process.name() and "ray/" not in " ".join(process.cmdline())


def failures(four: FourMachines, machines: int) -> None:
    house = four.house

    with four.row("an agent killed"):
        before = house.agent("d1")
        psutil.Process(before).kill()
        house.new_agent("d1", before)

    with four.row("a raylet frozen until it is missed, thawed, and joined again"):
        before = house.agent("d2")
        frozen = house.raylet("m2")
        frozen.suspend()
        until(lambda: "m2" not in four.names(), "it is missed")
        time.sleep(2.0)
        frozen.resume()
        house.nodes["m2"].all_processes["raylet"][0].process.wait(60)
        house.join("m2")
        house.new_agent("d2", before)

    for away_s in (3.0, 25.0):
        with four.row(f"GCS away for {away_s:g} s"):
            house.cluster.head_node.kill_gcs_server()
            time.sleep(away_s)
            house.cluster.head_node.start_gcs_server()
            for number in four.numbers:
                until(lambda n=number: house.told(f"d{n}"), f"the agent of d{number} answers")

    with four.row("the controller killed, and started again"):
        four.controller.kill()
        four.controller.wait()
        four.controller = four.controls()
        time.sleep(3.0)
        moved = [line for line in four.lines if "placement of" in line or "lost" in line]
        assert not moved, moved

    lost = [*four.numbers][2:]  # one of three, two of four
    most = {"model": f"model{lost[-1]}", "prompt": "tokens", "max_tokens": 5}
    for _ in range(30):  # answers without tokens are no load that is known
        assert posted(four.router(1), most, KEY)[0] == 200, "the last one has the most requests"
    time.sleep(KNOWN_S)
    with four.row(f"{len(lost)} of {machines} machines lost at once", [1, 2]):
        lose(four, *lost)
        begun = time.monotonic()
        elsewhere: dict[int, float] = {}

        def whole() -> bool:
            for number in lost:
                if number not in elsewhere and four.serves(1, number):
                    elsewhere[number] = time.monotonic() - begun
            return len(elsewhere) == len(lost)

        until(whole, "what was lost is served elsewhere", LONG_S)
        told = ", ".join(f"model{n} after {s:.1f} s" for n, s in elsewhere.items())
        four.measured["what was lost is served elsewhere"] = told
    steps = [line for line in four.lines if re.match(r"mirage: \d+\. start model", line)]
    assert f"start model{lost[-1]} " in steps[0], steps
    for number in (1, 2):
        assert four.is_at(number, number), "nothing else has moved"

    back = time.monotonic()
    for number in lost:
        house.join(f"m{number}")
    for number in lost:
        until(lambda n=number: four.is_at(n, n), f"d{number} has its model again", LONG_S)
    for number in lost:
        for device in (1, 2):
            until(lambda d=device, n=number: not four.is_at(d, n), "it is given up", LONG_S)
    four.measured["lost machines are back"] = f"whole after {time.monotonic() - back:.1f} s"
