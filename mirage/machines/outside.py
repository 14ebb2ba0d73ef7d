"""A device server outside the process tree of its starter, and the agent's side of the connection
to it.

Ray ends all processes that its workers have started when a worker, a raylet or the network fails,
and also those cut off by a partition, once it heals. A process that was forked twice into a session
of its own has no parent that Ray knows.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirage.machines.seam import DeviceAnswer, DeviceCall, MachineAway, StaleEpoch
from mirage.machines.tether_messages import (
    FromTether,
    TetherAnswer,
    TetherAway,
    TetherCall,
    TetherEnd,
    TetherRenew,
    TetherStale,
    TetherTold,
    ToTether,
)
from mirage.wire import Broken, Channel

TOLD_S = 5.0
"""Seconds to wait for a server's answer about itself."""
CALLED_S = 630.0
"""Seconds to wait for an answer of the admin socket; a request may change the configuration."""
OF_RAY = "RAY_"
NOT_INHERITED = frozenset({"LD_PRELOAD", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED"})
"""Variables that Ray sets for its worker processes, and that a server must not inherit."""
FORKS = """
import subprocess, sys
log = open(sys.argv[1], "ab")
made = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        start_new_session=True)
print(made.pid)
"""


def start_outside(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
    """Start a Python program that outlives this process; return its process id. Raises `OSError` if
    it cannot be started.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(OF_RAY) and name not in NOT_INHERITED
    }
    forks = [sys.executable, "-c", FORKS, str(log), sys.executable, *words]
    done = subprocess.run(forks, env=kept, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise OSError(f"no process can be started (exit code {done.returncode})")
    return int(done.stdout)


class TetherClient:
    """Client by which the agent reaches the device server that listens at the socket `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def renew(self, lease_s: float) -> TetherTold:
        """Extend the server's lease to `lease_s` seconds from now; return its state. Raises
        `MachineAway` if it does not answer.
        """
        return self._told(TetherRenew(lease_s))

    def end(self, epoch: int) -> TetherTold:
        """Have the server drain and end; return its state. Raises `MachineAway` if it does not
        answer, and `StaleEpoch` if a newer controller has given orders.
        """
        return self._told(TetherEnd(epoch))

    def call(self, epoch: int, call: DeviceCall) -> DeviceAnswer:
        """Send a request to the device server's admin socket. Raises `MachineAway` if it does not
        answer, and `StaleEpoch` if a newer controller has given orders.
        """
        asked = TetherCall(epoch, call.method, call.path, call.body)
        answer = self._asked(asked, CALLED_S)
        assert isinstance(answer, TetherAnswer), answer
        return DeviceAnswer(answer.status, answer.body)

    def pid(self) -> int | None:
        """Id of the process that listens at the socket, even if it is frozen; None if no process
        does.
        """
        with socket.socket(socket.AF_UNIX) as there:
            try:
                there.settimeout(TOLD_S)
                there.connect(str(self._path))
            except OSError:
                return None
            told = there.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int.from_bytes(told[:4], sys.byteorder)

    def _told(self, message: ToTether) -> TetherTold:
        answer = self._asked(message, TOLD_S)
        assert isinstance(answer, TetherTold), answer
        return answer

    def _asked(self, message: ToTether, timeout_s: float) -> FromTether:
        there = socket.socket(socket.AF_UNIX)
        channel: Channel[FromTether] = Channel(there, FromTether)
        try:
            there.settimeout(timeout_s)
            there.connect(str(self._path))
            channel.say(message)
            answer = channel.wait()[0]
        except (Broken, OSError) as error:
            raise MachineAway(f"{self._path}: no server answers ({error})") from None
        finally:
            channel.close()
        if isinstance(answer, TetherAway):
            raise MachineAway(answer.why)
        if isinstance(answer, TetherStale):
            raise StaleEpoch(answer.epoch)
        return answer
