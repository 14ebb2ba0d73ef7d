"""An engine's end of the keeper: one master is asked for, and perhaps filled."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from mirage.keeper.messages import (
    AskMaster,
    FillMaster,
    MasterFilled,
    MasterHere,
    MasterSealed,
    MasterUnfit,
    NoMaster,
    ToAsking,
)
from mirage.wire import Broken, Channel

WAIT_S = 120.0
"""Seconds to wait for another engine that fills the same master; then this one keeps its own."""


class MasterRefused(Exception):
    """Refusal of a master for this engine; the message says why."""


class KeeperClient:
    """A master in the keeper's memory. It is in use until the connection ends with this process."""

    def __init__(self, path: Path, tenant: str, identity: str, nbytes: int) -> None:
        """Wait until it is whole, or this engine may fill it. Raises `MasterRefused`."""
        there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        there.settimeout(WAIT_S)
        self._channel: Channel[ToAsking] = Channel(there, ToAsking, most_descriptors=1)
        try:
            there.connect(str(path))
            self._channel.say(AskMaster(tenant, identity, nbytes))
            answer, descriptors = self._channel.wait()
        except (OSError, Broken) as error:
            self._channel.close()
            raise MasterRefused(f"the keeper of weights does not answer ({error})") from None
        if not isinstance(answer, (MasterHere, FillMaster)) or len(descriptors) != 1:
            self._channel.close()
            raise MasterRefused(answer.why if isinstance(answer, NoMaster) else str(answer))
        self.fd = descriptors[0]
        self.whole = isinstance(answer, MasterHere)
        """True if it is there; False if it is to be filled."""

    def filled(self) -> None:
        """It is whole, and not mapped to be written here. Raises `MasterRefused`: not kept then."""
        try:
            self._channel.say(MasterFilled())
            answer = self._channel.wait()[0]
        except Broken as error:
            raise MasterRefused(f"the keeper of weights is gone ({error})") from None
        if not isinstance(answer, MasterSealed):
            raise MasterRefused(str(answer))

    def unfit(self, why: str) -> None:
        """These weights are not to be kept: nobody is offered them again."""
        with suppress(Broken):
            self._channel.say(MasterUnfit(why))

    def close(self) -> None:
        """Let go of the master. Idempotent."""
        if self.fd >= 0:
            self._channel.close()
            os.close(self.fd)
            self.fd = -1
