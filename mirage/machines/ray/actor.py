"""Detached actor of one device: a thin shell of the agent, in a process of Ray's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from mirage.machines.agent import AgentOrder, OutsideAgent
from mirage.machines.seam import DeviceCall, MachineAway, StaleEpoch

FOLDER = "MIRAGE_NODE_FOLDER"
"""Variable of a machine's Ray processes: folder of device servers there."""


MACHINE, RELEASE = "mirage-machine", "release-"
"""Labels of a node: the machine's name, and beginning of those of what is installed there."""


class DeviceActor:
    """Answers are plain values, so that no class of ours is kept by Ray."""

    def __init__(self, device: str) -> None:
        self._agent = OutsideAgent(Path(os.environ[FOLDER]) / device)

    def obeys(self, order: bytes) -> int:
        """Have a server by an order; 0, or the newer epoch that has begun."""
        try:
            self._agent.obeys(msgspec.json.decode(order, type=AgentOrder))
        except StaleEpoch as error:
            return error.epoch
        return 0

    def call(self, epoch: int, method: str, path: str, body: bytes) -> tuple[str, Any]:
        """A kind, ``answer``, ``away`` or ``stale``, and what goes with it."""
        try:
            answer = self._agent.call(epoch, DeviceCall(method, path, body))
        except StaleEpoch as error:
            return "stale", error.epoch
        except MachineAway as error:
            return "away", str(error)
        return "answer", (answer.status, answer.body)

    def end(self, epoch: int) -> int:
        """Have the server drain and end; 0, or the newer epoch that has begun."""
        try:
            self._agent.end(epoch)
        except StaleEpoch as error:
            return error.epoch
        return 0

    def told(self) -> dict[str, Any] | None:
        """The server as it was at the last beat, with the process of this agent."""
        told = self._agent.told()
        if told is None:
            return None
        return {**msgspec.structs.asdict(told), "agent": os.getpid()}
