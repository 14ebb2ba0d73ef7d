"""A machine that joins a cluster that serves, and its device, which a file adds by commands."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from loopback import HEAD, PORT, SECOND
from supervised import assert_gone, write_config
from test_cluster_command import (
    OneMachine,
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


def test_a_machine_joins_and_its_device_is_added(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "a")
    told = two_machines() | {"hang_s": 30}
    alone = told | {"devices": told["devices"][:1], "tenants": told["tenants"][:1]}
    config.write_text(yaml.safe_dump(alone))
    first, second = OneMachine(root, "m1", HEAD), OneMachine(root, "m2", SECOND)
    with ExitStack() as over:
        words = ("node", "start", "--name", "m1", "--host", HEAD, "--port", str(PORT))
        _, lines = over.enter_context(first.runs(*words))
        until(lambda: "m1: runs\n" in lines, "the head runs")
        secret = str(NodeFolder(first.folder).secret_file)
        key = derived(NodeFolder(first.folder).secret(), "devices")
        _, said = over.enter_context(first.runs("serve", str(config), "--cluster", "--port", "0"))

        def serves(machine: str, model: str) -> bool:
            router = last_of(said, f"mirage: machine {machine!r} serves all models at ")
            return is_served(router, model, key)

        try:
            until(lambda: serves("m1", "a"), "m1 serves its model", 240)
            join = ("node", "join", f"{HEAD}:{PORT}", "--name", "m2", "--host", second.host)
            _, joined = over.enter_context(second.runs(*join, "--secret", secret))
            until(lambda: "m2: runs\n" in joined, "the other node runs", 240)
            config.write_text(yaml.safe_dump(told))
            socket = last_of(said, "mirage: operators: --socket ")
            done = first.mirage("apply", "-f", str(config), "--socket", socket)
            assert done.returncode == 0, done
            assert (
                "device right: added; its server starts once its machine is there"
                in done.stdout.splitlines()
            ), done
            for place in ("m1", "m2"):
                until(lambda p=place: all(serves(p, m) for m in "ab"), f"{place} has both", 240)
            done = first.mirage("ps", "--socket", socket)
            assert [row.split()[0] for row in done.stdout.splitlines()[-2:]] == ["a", "b"]
        except BaseException:
            print("".join(said), log_of(first.folder / "left"), log_of(second.folder / "right"))
            raise
        of_servers = servers_in(root)
        for machine in (second, first):
            assert machine.mirage("node", "leave").returncode == 0
    assert_gone(of_servers)
