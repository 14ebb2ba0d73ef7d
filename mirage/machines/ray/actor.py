"""Detached Ray actor of one device: it passes calls on to the device's agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from mirage.machines.agent import AgentOrder, OutsideAgent
from mirage.machines.seam import DeviceCall, MachineAway, ServerCannot, StaleEpoch

FOLDER = "MIRAGE_NODE_FOLDER"
"""Environment variable of a machine's Ray processes: the machine's folder, in which each device
server has one.
"""


MACHINE, RELEASE = "mirage-machine", "release-"
"""Labels of a node: the machine's name, and the prefix of labels with installed releases."""
HOST_BYTES = "mirage-host-bytes"
"""Label of a node: bytes of host memory that its processes may have."""


class DeviceActor:
    """Ray actor that runs the agent of one device. Arguments and results of its methods are plain
    values (numbers, text, bytes, dicts), so that Ray pickles no object of the project's classes.
    """

    def __init__(self, device: str) -> None:
        self._agent = OutsideAgent(Path(os.environ[FOLDER]) / device)

    def obeys(self, order: bytes) -> int:
        """Let the agent keep a server by an order; return 0, or the newer epoch that makes the
        order stale.
        """
        try:
            self._agent.obeys(msgspec.json.decode(order, type=AgentOrder))
        except StaleEpoch as error:
            return error.epoch
        return 0

    def call(self, epoch: int, method: str, path: str, body: bytes) -> tuple[str, Any]:
        """Send a request to the server. Returns a kind with its facts: ``answer`` with status and
        body; ``away`` with the reason why the server cannot be reached now; ``cannot`` with the
        message with which it last refused to start; ``stale`` with the newer epoch.
        """
        try:
            answer = self._agent.call(epoch, DeviceCall(method, path, body))
        except StaleEpoch as error:
            return "stale", error.epoch
        except ServerCannot as error:
            return "cannot", str(error)
        except MachineAway as error:
            return "away", str(error)
        return "answer", (answer.status, answer.body)

    def end(self, epoch: int) -> int:
        """Have the server drain and end; return 0, or the newer epoch that makes the order
        stale.
        """
        try:
            self._agent.end(epoch)
        except StaleEpoch as error:
            return error.epoch
        return 0

    def told(self) -> dict[str, Any] | None:
        """State of the server at the last renewal of its lease, with the agent's process id; None
        if it did not answer.
        """
        told = self._agent.told()
        if told is None:
            return None
        return {**msgspec.structs.asdict(told), "agent": os.getpid()}
