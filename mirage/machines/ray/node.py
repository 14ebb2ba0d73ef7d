"""This machine as a node of a Ray cluster: its folder, its secret, and the arguments of Ray's
command.

Ray checks a token at each call, and keeps its tables on disk or in Redis.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from pathlib import Path

import msgspec

from mirage.errors import CommandFailed, InputRefused
from mirage.machines.ray.actor import FOLDER, HOST_BYTES, MACHINE, RELEASE
from mirage.machines.ray.head import HeadPlace
from mirage.machines.ray.process import NodeProcess
from mirage.machines.ray.store import NodeStore
from mirage.machines.releases import releases
from mirage.private_file import read_private, replace_private
from mirage.processes.marks import ProcessMark, mark_of
from mirage.weights.secret import LEAST
from vmm.host_memory import host_memory

PORT = 6390
STORE_BYTES = 80 * 2**20
"""Bytes of Ray's own object store, which is not used; the smallest size that Ray accepts."""
HEAD_AWAY_S = 3600
"""Seconds for which nodes wait for a head that is away."""
STARTS_S = 120
"""Seconds for Ray's processes to start, enough where other processes keep the processors busy."""
SYSTEM = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 4,
}
"""Health checks that detect a lost machine after about two seconds; Ray's defaults take
fourteen.
"""
LONGEST_SECRET = 4096
FREE_PORTS = ("min-worker", "max-worker", "dashboard-agent-listen")
"""Ports of Ray for which it takes any free ones."""


class NodeRecord(msgspec.Struct, frozen=True):
    """The node that runs on this machine."""

    name: str
    process: ProcessMark
    address: str
    """Address of the head, as HOST:PORT."""
    host: str
    """Address of this machine."""
    starts: int = 0
    """Starts of Ray so far, by this process."""


class NodeFolder:
    """Folder of this machine as a node: the cluster's secret, the record of the node that runs, and
    a folder for the device server of each device."""

    def __init__(self, folder: Path | None = None) -> None:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        self.path = folder or Path(os.environ.get(FOLDER) or Path(state) / "mirage" / "node")
        self.secret_file, self._record = self.path / "secret", self.path / "node.json"

    def secret(self) -> str:
        """The cluster's secret. Raises `InputRefused` if there is none."""
        try:
            return read_private(self.secret_file, LONGEST_SECRET).decode().strip()
        except OSError as error:
            raise InputRefused(
                f"{self.secret_file}: no secret of a cluster can be read ({error}): mirage node "
                "start makes one, and mirage node join takes a copy"
            ) from None

    def make_secret(self) -> None:
        """Make a secret, unless the folder has one. Raises `OSError` if it cannot be written."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.secret_file.exists():
            replace_private(self.secret_file, secrets.token_hex(32).encode())

    def take_secret(self, copy: Path) -> None:
        """Copy the cluster's secret from the file `copy`. Raises `InputRefused` if it cannot be
        read, is open to others, or is too short.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            secret = read_private(copy, LONGEST_SECRET)
            if len(secret.strip()) < LEAST:
                raise InputRefused(
                    f"{copy}: no secret, which has {LEAST} characters or more: copy it again"
                )
            replace_private(self.secret_file, secret)
        except OSError as error:
            raise InputRefused(f"{copy}: cannot be read ({error}): copy it with mode 600") from None

    def node(self) -> NodeRecord | None:
        """The node that runs on this machine; None if none does."""
        try:
            told = msgspec.json.decode(self._record.read_bytes(), type=NodeRecord)
        except (OSError, msgspec.DecodeError):
            return None
        return told if mark_of(told.process.pid) == told.process else None

    def running(self) -> NodeRecord:
        """The node that runs on this machine. Raises `CommandFailed` if none does."""
        if (told := self.node()) is None:
            raise CommandFailed(f"{self.path}: no node runs here: run mirage node start or join")
        return told

    def environment(self, store: NodeStore | None = None) -> dict[str, str]:
        """Variables for Ray's processes, and for processes that connect to them. Raises
        `InputRefused` without a secret.

        The head's tables are in its folder, or in `store`.
        """
        secret = self.secret()
        kept = (
            {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.path / "gcs")}
            if store is None
            else {
                "RAY_REDIS_ADDRESS": store.address,
                "RAY_external_storage_namespace": self.tables(),
            }
        )
        return kept | {
            FOLDER: str(self.path),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": derived(secret, "ray"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": str(STARTS_S),
            "RAY_worker_niceness": "0",  # device servers have that of their agents
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_AWAY_S),
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # nothing that serves is Ray's
        }

    def tables(self) -> str:
        """Name of the cluster's tables in a store. Raises `InputRefused` if there is no secret."""
        return derived(self.secret(), "store")[:16]

    def run(
        self,
        name: str,
        host: str,
        place: HeadPlace,
        say: Callable[[str], None],
        port: int = PORT,
        store: NodeStore | None = None,
    ) -> None:
        """Run the node until a signal. Raises `InputRefused` without a secret, and `CommandFailed`
        if a node runs here already, no head is found, or Ray does not start.

        The head is at `place`. A head on this machine listens at `port`, and keeps its tables in
        `store` if one is given.
        """
        if (there := self.node()) is not None:
            raise CommandFailed(
                f"node {there.name!r} runs here, process {there.process.pid}: leave first, or end "
                "it by Ctrl-C: device servers go on then"
            )
        environment = {**os.environ, **self.environment(store)}
        (self.path / "gcs").mkdir(exist_ok=True)
        mark = mark_of(os.getpid())
        assert mark is not None, "this process lives"

        numbers = count(1)

        def words() -> list[str]:
            found = place.begin()
            record = NodeRecord(name, mark, found.address, host, next(numbers))
            replace_private(self._record, msgspec.json.encode(record))
            if store is not None:
                say(f"{name}: the head is {'here' if found.is_here else f'at {found.address}'}")
            at = _of_head(port, store) if found.is_here else ["--address", found.address]
            return _words(name, host) + at

        told = lambda line: say(f"{name}: {line}")  # noqa: E731
        try:
            NodeProcess(words, place.stays, environment, self.path / "ray.log", told).run()
        finally:
            place.end()


def _words(name: str, host: str) -> list[str]:
    """Arguments of Ray's command for any node, with a folder of this machine for Ray's files."""
    labels = {MACHINE: name, HOST_BYTES: f"{host_memory().bytes}"} | {
        f"{RELEASE}{key}": told for key, told in releases().items()
    }
    files = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"
    words = ["start", "--block", "--disable-usage-stats", "--node-ip-address", host]
    words += ["--labels", ",".join(f"{key}={told}" for key, told in labels.items())]
    words += ["--num-cpus", "1", "--num-gpus", "0", "--log-style", "record"]
    words += ["--object-store-memory", str(STORE_BYTES), "--temp-dir", str(files)]
    return words + [word for port in FREE_PORTS for word in (f"--{port}-port", "0")]


def _of_head(port: int, store: NodeStore | None) -> list[str]:
    """Arguments of Ray's command for the head."""
    words = ["--head", "--port", str(port), "--include-dashboard", "false", "--no-monitor"]
    words += ["--system-config", json.dumps(SYSTEM)]
    return words if store is None else words + store.words()


def derived(secret: str, purpose: str) -> str:
    """Token for one purpose. Neither the secret nor another token can be computed from it."""
    return sha256(f"mirage {purpose} {secret}".encode()).hexdigest()
