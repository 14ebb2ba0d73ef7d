"""Stand-in for a device's server below its keeper: its order names its tenants, and it answers
`GET /tenants` at its socket.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread

from mirage.machines.line import BEAT_S, DeviceAlive, DeviceReady, ToDevice
from mirage.wire import Channel

PATH, ORDER, LINE = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
TENANTS = [{"name": name} for name in json.loads(ORDER.read_bytes())]


class Server(ThreadingMixIn, UnixStreamServer):
    """Server of HTTP at a Unix socket."""

    daemon_threads = True


class Answers(BaseHTTPRequestHandler):
    """Answers to `GET /tenants`; any other path is unknown."""

    def do_GET(self) -> None:
        body = json.dumps({"server": {"pid": os.getpid()}, "tenants": TENANTS}).encode()
        self.send_response(200 if self.path == "/tenants" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


PATH.unlink(missing_ok=True)
Thread(target=Server(str(PATH), Answers).serve_forever, daemon=True).start()
channel: Channel[ToDevice] = Channel(socket.socket(fileno=LINE), ToDevice)
channel.tell(DeviceReady())
while True:
    channel.tell(DeviceAlive())
    time.sleep(BEAT_S)
