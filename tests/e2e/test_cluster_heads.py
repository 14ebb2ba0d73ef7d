"""Loss of a controller, and of the head's machine: other machines go on serving and
waking models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from loopback import HEAD, PORT, SECOND
from operated import ROSTER
from supervised import assert_gone, write_config
from test_cluster_command import OneMachine, is_served, last_of, servers_in
from test_cluster_command import pytestmark as pytestmark
from test_cluster_command import root_folder as root_folder
from tethered import ask, log_of, until

from mirage.machines.ray.node import NodeFolder, derived

TENANT = {"model": "model", "max_model_len": 128}
SERVES = "mirage: machine {!r} serves all models at "


class Asker:
    """Thread that sends requests one after the other. It keeps the processes that answered
    (`pids`), and all answers that are not good (`wrong`).
    """

    def __init__(self, url: str, model: str, key: str) -> None:
        self.pids: list[Any] = []
        self.wrong: list[Any] = []
        self._told, self._over = (url, model, key), threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(0.05):
            try:
                status, told = ask(*self._told)
            except OSError as error:
                status, told = 0, str(error)
            (self.pids if status == 200 else self.wrong).append(told)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def asked(url: str, model: str, key: str) -> Iterator[Asker]:
    """Send requests while the block runs. All must be answered, and by the same process."""
    asker = Asker(url, model, key)
    try:
        yield asker
    finally:
        asker.end()
    assert not asker.wrong and asker.pids
    assert all(pids == asker.pids[0] for pids in asker.pids)


def test_controllers_and_heads_come_and_go_and_what_serves_stays(
    root: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, "a")
    told = {
        "devices": [
            {"name": "left", "machine": "m1", "memory": "4MiB"},
            {"name": "right", "machine": "m2", "memory": "4MiB"},
        ],
        "dtype": "float32",
        "tenants": [
            {"name": "a", "device": "left", **TENANT, "share": 40},
            {"name": "b", "device": "right", **TENANT, "share": 80},
            {"name": "c", "device": "right", **TENANT, "share": 80, "start": "on_request"},
        ],
        "roster": ROSTER,
        "hang_s": 5,
    }
    config.write_text(yaml.safe_dump(told))
    first, second = OneMachine(root, "m1", HEAD), OneMachine(root, "m2", SECOND)
    start = ("node", "start", "--name", "m1", "--host", HEAD, "--port", str(PORT))
    serve = ("serve", str(config), "--cluster", "--port", "0")
    logs: list[list[str]] = []
    with ExitStack() as over:
        node, lines = over.enter_context(first.runs(*start))
        until(lambda: any("m1: runs" in line for line in lines), "the head runs")
        secret = NodeFolder(first.folder).secret_file
        key = derived(NodeFolder(first.folder).secret(), "devices")
        join = ("node", "join", f"{HEAD}:{PORT}", "--name", "m2", "--host", second.host)
        over.enter_context(second.runs(*join, "--secret", str(secret)))

        def controller(*words: str) -> tuple[Any, list[str]]:
            process, said = over.enter_context(first.runs(*serve, *words))
            logs.append(said)
            until(lambda: last_of(said, "mirage: controller of epoch "), "it has an epoch")
            for machine in ("m1", "m2"):
                until(lambda m=machine: last_of(said, SERVES.format(m)), f"{machine} is known")
            return process, said

        try:
            one, said = controller()
            m1, m2 = (last_of(said, SERVES.format(name)) for name in ("m1", "m2"))
            for url in (m1, m2):
                for model in "ab":
                    until(lambda u=url, m=model: is_served(u, m, key), f"{url} serves {model}")

            with asked(m2, "a", key) as asker, asked(m1, "b", key):
                one.kill()
                one.wait()
                time.sleep(2.0)
                begun = time.monotonic()
                two, said = controller()
                seconds = time.monotonic() - begun
                time.sleep(3.0)
                assert not [line for line in said if "gets" in line or "lost" in line], said
            assert "epoch 2" in "".join(said)
            assert (m1, m2) == tuple(last_of(said, SERVES.format(name)) for name in ("m1", "m2"))
            print(f"controller killed: whole {seconds:.1f} s after its start", len(asker.pids))

            three, _ = controller("--take-over")
            until(lambda: two.poll() is not None, "the older controller ends")
            assert two.returncode == 1
            assert "another controller serves this cluster now" in "".join(said)
            assert three.poll() is None

            until(lambda: is_served(m1, "c", key), "c comes, and b goes")
            until(lambda: is_served(m1, "b", key), "b comes, and c goes")
            status = first.mirage("node", "status").stdout
            pid = int(status.split("device left")[1].split("process ")[1].split(",")[0])
            with asked(m2, "b", key) as asker:
                first.lost(node, pid)
                three.wait()
                begun = time.monotonic()
                until(lambda: ask(m2, "a", key)[0] == 503, "it is known that a is away")
                known_s = time.monotonic() - begun
                time.sleep(10.0)
            count, begun = len(asker.pids), time.monotonic()
            assert is_served(m2, "c", key), "it wakes without a controller"
            woken_s = time.monotonic() - begun
            assert ask(m2, "a", key)[0] == 503, "nothing is placed"
            until(lambda: is_served(m2, "b", key), "b is woken")

            with asked(m2, "b", key):
                begun = time.monotonic()
                for path in root.rglob("ray_current_cluster"):
                    path.unlink()  # the other machine's raylet is not seen from here
                _, lines = over.enter_context(first.runs(*start))
                until(lambda: any("m1: runs" in line for line in lines), "a head runs")
                _, said = controller()
                until(lambda: is_served(m2, "a", key), "a is served again")
                seconds = time.monotonic() - begun
            assert "epoch 4" in "".join(said)
            until(lambda: is_served(last_of(said, SERVES.format("m1")), "b", key), "both routers")
            print(f"head lost: known after {known_s:.1f} s, {count} requests meanwhile, a wake in")
            print(f"{woken_s:.1f} s; whole {seconds:.1f} s after a head was started anew")
        except BaseException:
            for said in logs:
                print("".join(said))
            for folder in (first.folder / "left", second.folder / "right"):
                print(log_of(folder))
            for folder in root.glob("m?/router@*"):
                print(folder.name, log_of(folder))
            raise
        of_servers = servers_in(root)
        for machine in (second, first):
            left = machine.mirage("node", "leave")
            assert left.returncode == 0, left
    assert_gone(of_servers)
