"""vllm-router in front of replicas' addresses: it serves, and a bad request ends
one engine only.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from supervised import DEADLINE_S
from test_serve_devices import LEFT, RIGHT, config_of, served

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm_router") is None, reason="vllm-router is not installed"),
]
PROGRAM = str(Path(sys.executable).with_name("vllm-router"))
END_S = 20.0


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as one:
        port: int = one.getsockname()[1]
        return port


class InFront:
    """A running vllm-router in front of our server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def asked(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Status and parsed body of an answer of vllm-router."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            with urlopen(Request(self.url + path, data, headers), timeout=DEADLINE_S) as answer:
                return answer.status, _json(answer.read())
        except HTTPError as error:
            with error:
                return error.code, _json(error.read())

    def completed(self, prompt: str, model: str = "c") -> tuple[int, Any]:
        return self.asked("/v1/completions", {"model": model, "prompt": prompt})

    def until_up(self) -> None:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            with suppress(URLError, ConnectionError):
                if self.asked("/liveness")[0] == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("it is not up")


def _json(text: bytes) -> Any:
    return json.loads(text) if text.startswith((b"{", b"[")) else text


@contextmanager
def in_front(log: Path, *more: str) -> Iterator[InFront]:
    """Run a vllm-router with the options `more` while the block runs."""
    port, metrics = free_port(), free_port()
    words = [PROGRAM, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    with log.open("w") as file:
        process = subprocess.Popen([*words, *more], stdout=file, stderr=subprocess.STDOUT)
        try:
            one = InFront(f"http://127.0.0.1:{port}")
            one.until_up()
            yield one
        except BaseException:
            print(log.read_text())
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_requests_are_shared_and_what_ends_one_engine_ends_no_other(
    tmp_path: Path, short: Path
) -> None:
    """vllm-router spreads requests over two replicas. vllm-router sends a request that ends an
    engine again, to the other replica, which refuses it.
    """
    with served(config_of(tmp_path), short) as machine:
        left, right = (f"{machine.server.url}/replicas/{device}/c" for device in (LEFT, RIGHT))
        with in_front(tmp_path / "vllm-router.log", "--worker-urls", left, right) as front:
            told = [front.completed("pids") for _ in range(6)]
            pids = {machine.pids("c", device) for device in (LEFT, RIGHT)}
            assert [status for status, _ in told] == [200] * 6
            assert {(one["server"], one["core"]) for _, one in told} == pids
            (card,) = front.asked("/v1/models")[1]["data"]
            assert card["id"] == "c"
            status, answer = front.completed("pids", model="a")
            assert status == 404 and answer["error"]["code"] == "model_not_found", answer

            status, answer = front.completed("die")
            assert status == 422 and answer["error"]["code"] == "request_ended_engine", answer
            assert {front.completed("pids")[0] for _ in range(6)} == {200}
            machine.server.until(
                "both are there again",
                lambda: set(machine.health()["tenants"]["c"].values()) == {"ready"},
            )
            assert sorted(machine.restarts("c")) == [0, 1]
        with in_front(tmp_path / "several.log", "--enable-igw") as front:
            for device, model in ((LEFT, "a"), (RIGHT, "b"), (LEFT, "c"), (RIGHT, "c")):
                url = f"{machine.server.url}/replicas/{device}/{model}"
                status, answer = front.asked("/workers", {"url": url, "model_id": model})
                assert status == 200, answer
            for model in ("a", "b"):
                status, one = front.completed("pids", model)
                assert (status, (one["server"], one["core"])) == (200, machine.pids(model))
            told = [front.completed("pids")[1]["core"] for _ in range(4)]
            assert set(told) == {machine.pids("c", device)[1] for device in (LEFT, RIGHT)}
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())
