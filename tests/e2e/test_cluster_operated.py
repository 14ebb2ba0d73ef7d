"""Two machines run by commands alone: a file is applied while they serve; one
controller at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from loopback import HEAD, PORT, SECOND
from supervised import assert_gone, write_config
from test_cluster_command import (
    OneMachine,
    asked,
    is_served,
    last_of,
    servers_in,
    two_machines,
)
from test_cluster_command import root_folder as root_folder
from tethered import log_of, until

from mirage.machines.ray.node import NodeFolder, derived

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rare,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

MORE = {"name": "c", "device": "right", "model": "model", "max_model_len": 128, "share": 20}


def test_a_file_is_applied_and_one_controller_takes_over_from_another(
    root: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, "a")
    told = two_machines()

    def writes(**changes: Any) -> None:
        config.write_text(yaml.safe_dump(told | changes))

    writes()
    first, second = OneMachine(root, "m1", HEAD), OneMachine(root, "m2", SECOND)
    with ExitStack() as over:
        words = ("node", "start", "--name", "m1", "--host", HEAD, "--port", str(PORT))
        _, lines = over.enter_context(first.runs(*words))
        until(lambda: "m1: runs\n" in lines, "the head runs")
        secret = str(NodeFolder(first.folder).secret_file)
        key = derived(NodeFolder(first.folder).secret(), "devices")
        join = ("node", "join", f"{HEAD}:{PORT}", "--name", "m2", "--host", second.host)
        _, joined = over.enter_context(second.runs(*join, "--secret", secret))
        until(lambda: "m2: runs\n" in joined, "the other node runs")
        serve = ("serve", str(config), "--cluster", "--port", "0")
        controller, said = over.enter_context(first.runs(*serve))
        heard = said

        def router(machine: str) -> str:
            return last_of(said, f"mirage: machine {machine!r} serves all models at ")

        def serves(machine: str, model: str) -> bool:
            return is_served(router(machine), model, key)

        def apply(*words: str) -> list[str]:
            socket = last_of(heard, "mirage: operators: --socket ")
            done = first.mirage("apply", "-f", str(config), "--socket", socket, *words)
            assert done.returncode == 0, done
            return done.stdout.splitlines()

        try:
            for place in ("m1", "m2"):
                until(lambda p=place: all(serves(p, m) for m in "ab"), f"{place} serves both")
            changed = [told["tenants"][0] | {"priority": 2}, told["tenants"][1], MORE]
            writes(tenants=changed, placement={"decide_s": 30})
            expected = (
                "left on m1: a: would be changed, priority at once",
                "placement.decide_s: would be changed, at once",
            )
            found = apply("--dry-run")
            assert [one for one in expected if one not in found] == [], found
            assert any(one.startswith("right on m2: c: would be added; it") for one in found), found
            assert not serves("m1", "c")
            with asked(router("m1"), "b", key), asked(router("m2"), "a", key):
                found = apply("--wait", "--timeout", "100")
                assert "c is ready on right" in found, found
                until(lambda: serves("m1", "c") and serves("m2", "c"), "both routers know c")
            done = first.mirage("ps", "--socket", last_of(said, "mirage: operators: --socket "))
            assert [row.split()[0] for row in done.stdout.splitlines()[-3:]] == ["a", "b", "c"]

            refused = second.mirage(*serve)
            assert refused.returncode == 1, refused
            pid = controller.pid
            assert f"the controller of this cluster is process {pid} on " in refused.stderr
            assert "--take-over" in refused.stderr and controller.poll() is None
            status = first.mirage("node", "status").stdout
            assert f"controller of epoch 1: process {pid} on " in status, status

            other, heard = over.enter_context(second.runs(*serve, "--take-over"))
            controller.wait(60)
            assert controller.returncode == 1
            until(lambda: "another controller serves this cluster now" in said[-1], "it says so")
            until(lambda: last_of(heard, "mirage: operators: --socket "), "the other one begins")
            writes()
            found = apply("--wait", "--timeout", "100")
            assert "c is absent on right" in found, found
            until(lambda: not serves("m1", "c"), "c has gone")
            assert serves("m1", "b")

            other.kill()
            _, last = over.enter_context(second.runs(*serve))
            until(lambda: "mirage: controller of epoch 3\n" in last, "a dead one is followed")
            assert not any("renewal" in line for line in last), "at once, on its machine"
        except BaseException:
            print("".join(said), "--", "".join(heard))
            print(log_of(first.folder / "left"), log_of(second.folder / "right"))
            raise
        of_servers = servers_in(root)
        for machine in (second, first):
            assert machine.mirage("node", "leave").returncode == 0
    assert_gone(of_servers)
