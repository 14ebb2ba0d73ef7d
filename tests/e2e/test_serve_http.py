"""The section `http` of a real server with light engines."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from operated import Operated, around, content
from supervised import serving, write_config

pytestmark = pytest.mark.e2e


def test_the_file_says_how_slow_clients_may_be(tmp_path: Path, short: Path) -> None:
    config = write_config(tmp_path, "a")
    config.write_text(yaml.safe_dump(content("a") | {"http": {"head_s": 0.5}}))
    with serving(config, environment=around(short)) as served:
        address = urlsplit(served.url)
        assert address.hostname is not None
        with closing(socket.create_connection((address.hostname, address.port or 0))) as client:
            client.settimeout(60)
            client.sendall(b"GET /live HTTP/1.1\r\n")
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"took more than 0.5 s" in answer
        config.write_text(yaml.safe_dump(content("a") | {"http": {"head_s": 5}}))
        done = Operated(served, short).mirage("apply", "-f", config)
        assert done.returncode == 1, done.stderr
        assert "http.head_s" in done.stderr
