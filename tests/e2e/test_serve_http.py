"""The section `http` of the configuration, in a real server with fake engines."""

from __future__ import annotations

import signal
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from operated import Operated, around, content
from supervised import Served, serving, write_config

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


def test_limits_change_while_requests_run(tmp_path: Path, short: Path) -> None:
    config = write_config(tmp_path, "a")
    config.write_text(yaml.safe_dump(content("a")))
    with serving(config, environment=around(short)) as served:
        served.drain()
        operator = Operated(served, short)
        assert operator.complete("a")[0] == 200
        metrics = served.request("GET", "/metrics")[1].decode()
        body = {"model": "a", "prompt": "drip", "max_tokens": 20, "stream": True}
        stream = served.open("POST", "/v1/completions", body)

        def apply(**http: Any) -> tuple[int, str]:
            config.write_text(yaml.safe_dump(content("a") | {"http": http}))
            done = operator.mirage("apply", "-f", config)
            return done.returncode, done.stdout + done.stderr

        told = apply(connections_per_peer=1)
        assert told[0] == 0 and "http.connections_per_peer: changed, at once" in told[1], told
        assert served.request("GET", "/live")[0] == 503, "the stream has the only connection"
        assert stream.getresponse().read().count(b"data: {}") == 20
        stream.close()
        served.until("the stream's connection has gone", lambda: is_open(served))
        with closing(socket.create_connection(address(served))):
            assert served.request("GET", "/live")[0] == 503
            router = next(p for p in served.family() if is_router(p) and not p.children())
            router.kill()
            router.wait()
        with closing(socket.create_connection(address(served))):
            served.until("another router has it", lambda: not is_open(served))
        told = apply(tls={"certificate": "/none", "key": "/none"})
        assert told[0] == 1 and "http.tls cannot change while the server runs" in told[1], told
        served.until("another router serves", lambda: is_open(served))
        assert apply()[0] == 0
        with closing(socket.create_connection(address(served))):
            assert served.request("GET", "/live")[0] == 200
        ends = 'mirage_router_ends_total{cause="died"} 0.0'
        assert ends in metrics
        assert ends.replace("0.0", "1.0") in served.request("GET", "/metrics")[1].decode()
        assert served.end(signal.SIGTERM)[0] == 0


def address(served: Served) -> tuple[str, int]:
    parts = urlsplit(served.url)
    return str(parts.hostname), parts.port or 0


def is_open(served: Served) -> bool:
    with suppress(OSError):
        return served.request("GET", "/live")[0] == 200
    return False


def is_router(process: Any) -> bool:
    return "mirage.serve.router.process" in process.cmdline()
