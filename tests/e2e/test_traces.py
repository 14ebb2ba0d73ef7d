"""`mirage traces fetch` from a server of the test: a trace is whole and right, or absent."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mirage.fetching import UnreachableError, WantedFile, fetch
from mirage.simulate.experiment import load
from mirage.tools.replay.preparation import ReplayOptions, settle
from mirage.tools.traces.command import traces_command
from mirage.workload import public
from mirage.workload.chosen import located
from mirage.workload.formats.registry import FORMATS
from mirage.workload.public import TRACES, Public
from mirage.workload.trace import TraceError

pytestmark = pytest.mark.e2e

ROWS = [
    f"2023-11-16 18:{n // 60 % 60:02d}:{n % 60:02d}.0000000,{n % 90 + 1},{n % 7 + 1}"
    for n in range(3000)
]
CONTENT = "\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *ROWS]).encode()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WANTED = WantedFile("tiny.csv", f"sha256:{SHA256}", len(CONTENT))


class Server(ThreadingHTTPServer):
    """Serves `content` as two files in /there, and understands ranges. On demand it sends less than
    it announces.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ends_after: int | None = None
        self.knows_ranges = True
        self.asked: list[str | None] = []
        """Range header of each request, in order; None for a request without one."""
        self.go_on = threading.Event()
        """Set while a connection is closed as soon as its answer was sent, whole or cut short;
        cleared, it stays open for up to 60 s.
        """
        self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/there"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/moved/tiny.csv":
            self.send_response(302)
            self.send_header("Location", "/there/tiny.csv")
            self.end_headers()
            return
        if self.path not in ("/there/tiny.csv", "/there/tiny.json"):
            self.send_error(404)
            return
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        begin = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        body = self.server.content
        if asked and self.server.knows_ranges:
            if begin >= len(body):
                self.send_error(416)
                return
            body = body[begin:]
            self.send_response(206)
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.ends_after])
        self.wfile.flush()
        self.server.go_on.wait(60)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.go_on.set()
        made.shutdown()
        thread.join()


def known(**changes) -> Public:
    told = {
        "about": "a few requests",
        "format": "azure",
        "file": "tiny.csv",
        "urls": ["https://nowhere.invalid/tiny.csv"],
        "bytes": len(CONTENT),
        "sha256": SHA256,
        "checked": "here",
        "licence": "none",
        "cite": "nobody",
    }
    return Public.model_validate(told | changes)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder; the list of public traces has one more, named "tiny"."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(TRACES, "tiny", known())
    return tmp_path / "mirage" / "traces"


def run(*words: object):
    app = typer.Typer()
    app.command()(traces_command)
    return CliRunner().invoke(app, list(map(str, words)))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# Fetching.


@pytest.mark.parametrize("place", ["there", "moved"])
def test_what_is_fetched_is_whole_and_found_by_its_name(server, cache, place):
    done = run("fetch", "tiny", "--mirror", server.url.replace("there", place))
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(cache / "tiny.csv")
    assert "Licence: none" in done.stderr
    assert (cache / "tiny.csv").read_bytes() == CONTENT
    assert files(cache) == ["tiny.csv"]
    assert located("tiny") == cache / "tiny.csv"


def test_the_mirror_may_be_in_the_environment_and_the_folder_another(
    server, tmp_path, cache, monkeypatch
):
    monkeypatch.setenv("MIRAGE_TRACES_MIRROR", server.url + "/")
    assert run("fetch", "tiny", "--cache", tmp_path / "mine").exit_code == 0
    assert files(tmp_path / "mine") == ["tiny.csv"] and files(cache) == []


def test_a_checksum_may_be_gits(server, cache, monkeypatch):
    blob = subprocess.run(["git", "hash-object", "--stdin"], input=CONTENT, capture_output=True)
    told = known(sha256=None, git=blob.stdout.decode().strip(), bytes=None)
    monkeypatch.setitem(TRACES, "tiny", told)
    assert run("fetch", "tiny", "--mirror", server.url).exit_code == 0
    (cache / "tiny.csv").write_bytes(CONTENT + b" ")
    done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 1 and "remove it and fetch it again" in done.stderr


def test_a_file_that_belongs_beside_a_trace_is_fetched_with_it(server, cache, monkeypatch):
    beside = {"file": "tiny.json", "urls": ["https://nowhere.invalid/a"], "sha256": SHA256}
    monkeypatch.setitem(TRACES, "tiny", known(beside=beside))
    done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(cache / "tiny.csv")
    assert files(cache) == ["tiny.csv", "tiny.json"]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_broken_connection_is_gone_on_with(server, cache, monkeypatch, ranges, size):
    monkeypatch.setitem(TRACES, "tiny", known(bytes=size))
    server.ends_after = 10_000
    done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 1
    assert f"broke after 10,000 of {len(CONTENT):,} bytes" in done.stderr
    assert files(cache) == ["tiny.csv.part"]
    server.ends_after, server.knows_ranges = None, ranges
    assert run("fetch", "tiny", "--mirror", server.url).exit_code == 0
    assert server.asked == [None, "bytes=10000-"]
    assert (cache / "tiny.csv").read_bytes() == CONTENT
    assert files(cache) == ["tiny.csv"]


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_all_of_it_may_have_come_before_an_end(server, cache, monkeypatch, size):
    monkeypatch.setitem(TRACES, "tiny", known(bytes=size))
    cache.mkdir(parents=True)
    (cache / "tiny.csv.part").write_bytes(CONTENT)
    assert run("fetch", "tiny", "--mirror", server.url).exit_code == 0
    assert (cache / "tiny.csv").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"9", b"<html>no such file</html>", b""])
def test_what_is_not_the_file_is_not_kept(server, cache, monkeypatch, content):
    monkeypatch.setitem(TRACES, "tiny", known(bytes=None))
    server.content = content
    done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 1
    assert f"not sha256:{SHA256}: nothing was kept" in done.stderr
    assert files(cache) == []


def test_more_than_there_should_be_is_not_waited_for(server, cache):
    server.content = CONTENT * 3000
    done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 1 and "more came than" in done.stderr
    assert sum(path.stat().st_size for path in cache.iterdir()) <= len(CONTENT)


def test_without_a_network_it_says_what_to_put_where(server, cache):
    server.shutdown()
    server.server_close()
    done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 1 and files(cache) == []
    line = done.stderr.strip().splitlines()[-1]
    assert "Connection refused" in line
    assert line.endswith(f"get https://nowhere.invalid/tiny.csv and put it at {cache / 'tiny.csv'}")
    (cache / "tiny.csv").write_bytes(CONTENT)
    assert run("fetch", "tiny", "--mirror", server.url).exit_code == 0, "put there, and right"


def test_a_server_that_has_it_not_says_so(server, cache):
    done = run("fetch", "tiny", "--mirror", server.url + "/not")
    assert done.exit_code == 1 and "HTTP 404 Not Found" in done.stderr and files(cache) == []


def test_a_server_that_says_nothing_more_is_given_up(server, cache):
    server.ends_after = 10_000
    server.go_on.clear()
    done = run("fetch", "tiny", "--mirror", server.url, "--timeout", "0.2")
    assert done.exit_code == 1 and "timed out" in done.stderr
    assert (cache / "tiny.csv.part").stat().st_size == 10_000


def test_the_second_address_is_tried_and_each_one_named(server, tmp_path):
    good, bad = f"{server.url}/tiny.csv", f"{server.url}/not"
    fetch(WANTED, tmp_path / "tiny.csv", [bad, good], lambda *_: None, 10.0)
    assert (tmp_path / "tiny.csv").read_bytes() == CONTENT
    with pytest.raises(UnreachableError, match=f"{bad}: HTTP 404 Not Found; {bad}: HTTP"):
        fetch(WANTED, tmp_path / "two.csv", [bad, bad], lambda *_: None, 10.0)


def test_progress_is_told_in_bytes(server, tmp_path):
    told = []
    fetch(
        WANTED, tmp_path / "tiny.csv", [f"{server.url}/tiny.csv"], lambda *n: told.append(n), 10.0
    )
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_two_do_not_fetch_one_file_at_once(server, cache):
    cache.mkdir(parents=True)
    with (cache / "tiny.csv.part").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 1 and "another process fetches it" in done.stderr


def test_an_interrupt_ends_it_and_it_goes_on_later(server, cache):
    server.ends_after = 10_000
    server.go_on.clear()
    script = (
        "import sys\nfrom mirage.cli import main\n"
        "from mirage.workload.public import TRACES, Public\n"
        f"TRACES['tiny'] = Public.model_validate_json({known().model_dump_json()!r})\n"
        "main(['traces', 'fetch', 'tiny', '--mirror', sys.argv[1]])"
    )
    command = [sys.executable, "-c", script, server.url]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        while not server.asked:
            assert process.poll() is None
        while (cache / "tiny.csv.part").stat().st_size < 10_000:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=180)
    assert process.returncode == 130 and told.rstrip().endswith("fetching goes on there")
    server.go_on.set()
    server.ends_after = None
    assert run("fetch", "tiny", "--mirror", server.url).exit_code == 0
    assert server.asked[-1] == "bytes=10000-" and files(cache) == ["tiny.csv"]


# What cannot be done.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fetch",), "fetch needs a name"),
        (("fetch", "azure-conv"), "no public trace is named 'azure-conv': choose from azure"),
        (("list", "azure-conv"), "no public trace is named"),
        (("fetch", "tiny", "--mirror", "ftp://a"), "mirror 'ftp://a': write an address as https://"),
    ],
)  # fmt: skip
def test_what_is_no_name_or_address_is_one_line(cache, words, says):
    done = run(*words)
    assert done.exit_code == 2 and says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_one_line(server, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    done = run("fetch", "tiny", "--mirror", server.url)
    assert done.exit_code == 1 and str(cache) in done.stderr
    assert len(done.stderr.splitlines()[-1:]) == 1 and "Traceback" not in done.output


# What is known.


def test_the_list_names_all_and_tells_of_each(cache):
    done = run("list")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in TRACES) and str(cache) in done.stdout
    each = run("list", *TRACES).stdout
    for one in TRACES.values():
        assert one.checksum in each and one.licence in each and one.urls[0] in each


def test_the_formats_of_public_traces_are_read():
    assert {one.format for one in TRACES.values()} <= set(FORMATS)
    assert len({one.file for one in TRACES.values()}) == len(TRACES)


def test_a_cache_folder_that_is_relative_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "mine")
    assert public.folder() == Path.home() / ".cache" / "mirage" / "traces"


def test_a_trace_that_was_not_fetched_names_the_command(cache):
    with pytest.raises(TraceError, match="run `mirage traces fetch tiny`"):
        located("tiny")


def test_a_file_of_that_name_is_meant_first(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_bytes(CONTENT)
    assert located("tiny") == Path("tiny")


def test_replay_and_simulate_find_it_by_name(server, cache, tmp_path):
    assert run("fetch", "tiny", "--mirror", server.url).exit_code == 0
    config = tmp_path / "c.yaml"
    config.write_text(
        "device: {memory: 1GiB}\n"
        "tenants: [{name: a, model: m, share: 50}, {name: b, model: m, share: 50}]\n"
    )
    plan = settle(config, ReplayOptions(trace="tiny", output=tmp_path / "out"))
    assert len(plan.calls) == len(ROWS)
    experiment = tmp_path / "e.yaml"
    experiment.write_text(
        "title: t\ntenants: [{name: a, model: llama-3-8b, share: 90}]\n"
        "workload: {arrivals: trace, file: tiny}\n"
    )
    assert load(experiment).experiment.workload.file == cache / "tiny.csv"
