"""A Ray cluster of several nodes on this machine, each of which counts as a machine."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from loopback import HEAD
from tethered import environment, order, ready, until

from mirage.machines.ray.node import NodeFolder, NodeRecord, derived
from mirage.machines.seam import MachineAway
from mirage.machines.tether_messages import TetherTold
from mirage.private_file import replace_private
from mirage.processes.marks import mark_of

MIB = 2**20
STORE_BYTES = 80 * MIB
SECRET = os.urandom(32).hex()
"""Secret of the cluster. Ray reads the token that is derived from it only once in each process."""
SYSTEM = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 4,
}


class RayHouse:
    """Nodes m1, m2 and so on beside a head node without devices. The test's process is a driver of
    Ray.
    """

    def __init__(self, folder: Path, machines: int) -> None:
        from ray.cluster_utils import Cluster

        from mirage.machines.ray.machines import RayMachines

        self.folder = folder
        self._kept = {"object_store_memory": STORE_BYTES, "node_ip_address": HEAD}
        head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True}
        head |= {"_system_config": SYSTEM}
        self.cluster = Cluster(initialize_head=True, head_node_args={**head, **self._kept})
        self.nodes: dict[str, Any] = {}
        for number in range(1, machines + 1):
            self.join(f"m{number}")
        self.connect()
        self.machines = RayMachines(1)

    def connect(self) -> None:
        import ray

        ray.init(
            address=self.cluster.address,
            _node_ip_address=HEAD,
            log_to_driver=False,
            namespace="mirage",
            logging_level=logging.ERROR,
        )
        self.cluster.wait_for_nodes()

    def join(self, name: str) -> None:
        """Add a node, which counts as machine `name`."""
        from mirage.machines.ray.actor import MACHINE

        self.nodes[name] = self.cluster.add_node(num_cpus=1, labels={MACHINE: name}, **self._kept)

    def is_node(self) -> NodeFolder:
        """Write a node's folder, so that our commands take this process's machine for a node."""
        folder, mark = NodeFolder(self.folder / "n"), mark_of(os.getpid())
        assert mark is not None
        folder.path.mkdir(exist_ok=True)
        replace_private(folder.secret_file, SECRET.encode())
        record = NodeRecord("m0", mark, self.cluster.address, HEAD)
        replace_private(folder.path / "node.json", msgspec.json.encode(record))
        return folder

    def raylet(self, name: str) -> psutil.Process:
        return psutil.Process(self.nodes[name].all_processes["raylet"][0].process.pid)

    def lose(self, name: str) -> None:
        """Kill the raylet, Ray's process of a node."""
        process = self.nodes[name].all_processes["raylet"][0].process
        process.kill()
        process.wait()

    def close(self) -> None:
        import ray

        with suppress(Exception):
            ray.shutdown()
        for process in self.of_ray():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        with suppress(Exception):
            self.cluster.shutdown()
        psutil.wait_procs(self.of_ray(), timeout=10)
        for process in self.of_ray():
            with suppress(psutil.Error):
                process.kill()

    def of_ray(self) -> list[psutil.Process]:
        """Processes of this Ray cluster."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            with suppress(psutil.Error):
                told = process.info["cmdline"] or []
                if any(str(self.folder / "ray") in word for word in told):
                    found.append(process)
        return found

    # -- devices ------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def start(self, device: str, machine: str, *tenants: str, lease_s: float = 60.0) -> TetherTold:
        """Start the server of a device, and wait until it is ready."""
        given = order(self.folder / "models", device, *tenants, lease_s=lease_s)
        self.do(self.machines.start(device, machine, msgspec.json.encode(given)))
        return self.ready(device)

    def told(self, device: str) -> TetherTold | None:
        try:
            return self.do(self.machines.told(device))
        except MachineAway:
            return None

    def ready(self, device: str) -> TetherTold:
        told: TetherTold = until(lambda: ready(self.told(device)), f"{device} is ready")
        return told

    def agent(self, device: str) -> int:
        """Process id of a device's agent. Raises if the agent does not answer."""
        import ray

        actor = ray.get_actor(f"device:{device}", namespace="mirage")
        told: Any = ray.get(actor.told.remote(), timeout=5)
        return int(told["agent"])

    def new_agent(self, device: str, before: int, timeout_s: float = 60.0) -> float:
        """Wait until a device has a new agent instead of `before`; return the seconds."""

        def there() -> bool:
            with suppress(Exception):
                return self.agent(device) != before
            return False

        begun = time.monotonic()
        until(there, f"{device} has another agent", timeout_s)
        return time.monotonic() - begun


@contextmanager
def ray_house(short: Path, machines: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayHouse]:
    """Run a Ray cluster with an embedded store and a token while the block runs; folders of device
    servers are in `short`.
    """
    if find_spec("ray") is None:
        pytest.skip("the extra cluster is not installed")
    folder = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    variables = environment(short) | {
        "MIRAGE_NODE_FOLDER": str(folder / "n"),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": derived(SECRET, "ray"),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(folder / "gcs"),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "60",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("gcs", "ray"):
        (folder / name).mkdir()
    house = None
    try:
        house = RayHouse(folder, machines)
        yield house
    except BaseException:
        for log in folder.glob("n/*/server.log"):
            print(log, log.read_text()[-3000:])
        raise
    finally:
        if house is not None:
            house.close()
        shutil.rmtree(folder, ignore_errors=True)
