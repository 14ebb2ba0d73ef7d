"""Connection of an engine to the keeper of weights, for one master.

The engine asks for it, fills it if it is new, and brings it to keepers that come later.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
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

logger = logging.getLogger("mirage.keeper.client")

WAIT_S = 120.0
"""Seconds to wait for the keeper's answer. While another engine fills the same master, the answer
comes only when it is complete. After that time this engine keeps its weights itself.
"""
PAUSE_S = 1.0
"""Seconds between attempts to reach another keeper."""


class MasterRefused(Exception):
    """Refusal of a master for this engine; the message says why."""


class KeeperClient:
    """Connection to the keeper for one master, whose memory file has the descriptor `fd`.

    The keeper counts the master as used until the connection ends, at the latest with this process.
    """

    def __init__(self, path: Path, tenant: str, identity: str, nbytes: int) -> None:
        """Ask for the master, and wait until it is complete or this engine may fill it.

        `nbytes` is its size, about. Raises `MasterRefused` if the keeper has none for this engine,
        or does not answer in `WAIT_S` seconds.
        """
        self._path, self._asks = path, AskMaster(tenant, identity, nbytes)
        self.fd = -1
        try:
            answer, descriptors = self._ask(WAIT_S)
        except (OSError, Broken) as error:
            raise MasterRefused(f"the keeper of weights does not answer ({error})") from None
        if not isinstance(answer, (MasterHere, FillMaster)) or len(descriptors) != 1:
            self._channel.close()
            raise MasterRefused(answer.why if isinstance(answer, NoMaster) else str(answer))
        self.fd = descriptors[0]
        self.whole = isinstance(answer, MasterHere)
        """True if the master is complete; False if this engine has to fill it."""

    def filled(self) -> None:
        """Tell the keeper that the master is complete and not mapped for writing here, and wait
        until it is sealed.

        Raises `MasterRefused` if the keeper does not keep it, or is gone.
        """
        try:
            self._channel.say(MasterFilled())
            answer = self._channel.wait()[0]
        except Broken as error:
            raise MasterRefused(f"the keeper of weights is gone ({error})") from None
        if not isinstance(answer, MasterSealed):
            raise MasterRefused(str(answer))

    def outlive(self) -> None:
        """From now on bring the complete master to each keeper that replaces the present one, in a
        thread that ends after `close`.
        """
        threading.Thread(target=self._bring, name="mirage-keeper-client", daemon=True).start()

    def unfit(self, why: str) -> None:
        """Tell the keeper that these weights cannot be kept; from then on it offers them to no
        engine.
        """
        with suppress(Broken):
            self._channel.say(MasterUnfit(why))

    def close(self) -> None:
        """Close the connection and the master's file. Idempotent."""
        if self.fd >= 0:
            self._channel.shut()
            self._channel.close()
            os.close(self.fd)
            self.fd = -1

    def _ask(self, wait_s: float | None) -> tuple[ToAsking, list[int]]:
        """Connect, ask for the master, and return the answer with its file descriptors.

        `wait_s` None waits without limit. Raises `OSError` or `Broken`, with the connection closed.
        """
        there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        there.settimeout(wait_s)
        self._channel: Channel[ToAsking] = Channel(there, ToAsking, most_descriptors=1)
        try:
            there.connect(str(self._path))
            self._channel.say(self._asks, descriptors=[self.fd] if self.fd >= 0 else [])
            return self._channel.wait()
        except (OSError, Broken):
            self._channel.close()
            raise

    def _bring(self) -> None:
        self._channel.socket.settimeout(None)
        while True:
            with suppress(Broken):
                self._channel.wait()  # until it ends: this keeper has nothing more to say
            self._channel.close()
            time.sleep(PAUSE_S)
            if self.fd < 0:
                return
            with suppress(OSError, Broken):
                answer, descriptors = self._ask(None)
                for each in descriptors:  # of a master that this engine does not need
                    os.close(each)
                logger.info("weights were brought to another keeper: %s", answer)
