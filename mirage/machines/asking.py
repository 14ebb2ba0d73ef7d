"""One request to the admin socket of a device server."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from pathlib import Path

from mirage.machines.seam import DeviceAnswer, DeviceCall, MachineAway

ANSWER_S = 30.0
"""Seconds to wait for an answer to a GET; other methods, which may change a configuration, have
`CHANGED_S`.
"""
CHANGED_S = 600.0


def asked(path: Path, call: DeviceCall, headers: dict[str, str] | None = None) -> DeviceAnswer:
    """Answer of the server at the Unix socket `path` to `call`, sent with these `headers`. Blocks.
    Raises `MachineAway` if the server does not answer in time."""
    with closing(http.client.HTTPConnection("device")) as connection:
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(ANSWER_S if call.method == "GET" else CHANGED_S)
            connection.sock.connect(str(path))
            connection.request(call.method, call.path, call.body or None, headers or {})
            answer = connection.getresponse()
            return DeviceAnswer(answer.status, answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise MachineAway(f"its server does not answer ({error})") from None
