"""`mirage replay` of one synthetic trace for each tenant, and the requests that a server gets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mirage.tools.replay.client import Journal
from mirage.tools.replay.command import replay_command
from mirage.tools.replay.run import replay_on
from mirage.workload.calls import Calls
from mirage.workload.dealing import TenantRequest
from mirage.workload.trace import TraceError

pytestmark = pytest.mark.e2e

TALKS = (
    "kind: synthetic\nrate: 1000\nlengths: short\nrequests: 60\n"
    "sessions: {turns: 4, think_s: 0.01}\nprefixes: {count: 1, tokens: 200}\n"
)
CONFIG = (
    "device: {memory: 1GiB}\n"
    "tenants: [{name: a, model: m, share: 50, max_model_len: 4096}, "
    "{name: b, model: m, share: 50, max_model_len: 4096}]\n"
)


class Handler(BaseHTTPRequestHandler):
    """HTTP handler that answers each completion with one token, and keeps the requests."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n')


class Server(ThreadingHTTPServer):
    request_queue_size = 512


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with Server(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        made.bodies = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def replay(tmp_path: Path, server: ThreadingHTTPServer, *words: object):
    (tmp_path / "c.yaml").write_text(CONFIG)
    app = typer.Typer()
    app.command()(replay_command)
    url = f"http://127.0.0.1:{server.server_port}"
    common = (tmp_path / "c.yaml", "--server", url, "--output", tmp_path / "out")
    return CliRunner().invoke(app, [str(word) for word in (*common, *words)])


def asked(server: ThreadingHTTPServer) -> list[dict]:
    """Bodies of the requests that the server got, except those of the warm-up."""
    return [body for body in server.bodies if body["prompt"] != "Hello"]  # type: ignore[attr-defined]


def test_each_tenant_is_asked_by_its_own_trace_and_turns_share_prompts(server, tmp_path):
    (tmp_path / "talks.yaml").write_text(TALKS)
    (tmp_path / "plain.yaml").write_text("kind: synthetic\nrate: 500\nlengths: short\n")
    traces = f"a={tmp_path / 'talks.yaml'},b={tmp_path / 'plain.yaml'}"
    done = replay(tmp_path, server, "--trace", traces, "--limit", 90)
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    bodies = asked(server)
    assert report["requests"] == report["runs"][0]["completed"] == len(bodies) == 90
    counts = Counter(body["model"] for body in bodies)
    assert report["runs"][0]["tenants"]["a"]["completed"] == counts["a"] > 20 < counts["b"]
    prompts = [body["prompt"] for body in bodies if body["model"] == "a"]
    assert len({prompt[:200] for prompt in prompts}) == 1, "the shared prefix"
    begun = [p for p in prompts if any(p.startswith(q) for q in prompts if len(q) < len(p))]
    assert len(begun) > len(prompts) / 4, "later turns"
    alone = [body["prompt"] for body in bodies if body["model"] == "b"]
    assert len({prompt[:20] for prompt in alone}) == len(alone)


def test_a_trace_that_is_gone_when_it_is_sent_is_told_in_its_own_words(server):
    passes = []

    def made() -> Iterator[TenantRequest]:
        passes.append(len(passes))
        for index in range(3):
            if passes[-1] and index == 2:
                raise TraceError("t.csv: cannot be read (No such file or directory)")
            yield TenantRequest(index, 0.0, "a", 5, 1, False)

    url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(TraceError, match=r"t\.csv: cannot be read"):
        asyncio.run(replay_on(url, Calls(made), 0, 60.0, Journal()))


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        ("c=x.yaml", "no tenant is named 'c': choose from a, b"),
        ("a=talks.yaml,a=talks.yaml", "tenant 'a' has two traces"),
        ("endless.yaml", "has no end: write requests or duration_s"),
        ("wrong.yaml", "rate: found -1, write a number above 0"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(server, tmp_path, monkeypatch, trace, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks.yaml").write_text(TALKS)
    (tmp_path / "endless.yaml").write_text("kind: synthetic\nrate: 1\n")
    (tmp_path / "wrong.yaml").write_text("kind: synthetic\nrate: -1\n")
    done = replay(tmp_path, server, "--trace", trace)
    assert done.exit_code == 2 and says in done.output
    assert len(done.output.splitlines()) == 1 and asked(server) == []
