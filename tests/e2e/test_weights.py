"""Weights are fetched between real processes by content: complete and right, whatever fails."""

from __future__ import annotations

import http.client
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from weight_machines import (
    CHUNK,
    DEADLINE_S,
    Machine,
    contents,
    finished,
    make_model,
    same,
    stopped,
)

from mirage.weights.store import part_of

pytestmark = pytest.mark.e2e

WEIGHTS = "model.safetensors"
SLOW = ("--rate", "1MiB")
"""Options of a server that sends the model in two and a half seconds."""
KNOWN = "Authorization: Bearer a secret of this cluster"
New = Callable[[str], Machine]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret of this cluster\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def new(tmp_path: Path, secret: Path) -> New:
    """Function that makes a machine with an empty store."""
    return lambda name: Machine(tmp_path / name, secret)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


@pytest.fixture
def origin(new: New, model: Path) -> Machine:
    """A machine whose store has the model as `toy`."""
    machine = new("origin")
    machine.add(model, "toy")
    return machine


@pytest.fixture
def served(origin: Machine) -> Iterator[str]:
    with origin.serving() as (url, _):
        yield url


def id_of(machine: Machine) -> str:
    return machine.store.names()["toy"]


def flip(path: Path, at: int) -> None:
    """Change one bit of the file of a content, as a faulty disk may."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def weights_of(machine: Machine) -> Path:
    """File of the content that has the model's weights."""
    manifest = machine.store.manifest(id_of(machine))
    return machine.store.content(next(f.sha256 for f in manifest.files if f.path == WEIGHTS))


def error(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("mirage: error: ") and "Traceback" not in done.stderr
    return line


def ask(url: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_model_comes_whole_by_its_name_and_by_its_id(
    new: New, model: Path, origin: Machine, served: str
) -> None:
    first, second = new("first"), new("second")
    done = first.pull("toy", served)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder == first.store.folder(id_of(origin)) and same(folder, model)
    assert "MiB/s" in done.stderr
    done = second.pull(id_of(origin), served)
    assert same(Path(done.stdout.strip()), model)
    assert second.store.names() == {}
    assert len(second.mirage("list").stdout.splitlines()) == 2


def test_what_is_there_already_does_not_come_again(
    new: New, tmp_path: Path, origin: Machine, served: str
) -> None:
    other = make_model(tmp_path / "other")
    (other / "generation_config.json").write_text("{}")
    origin.add(other, "other")
    machine = new("machine")
    assert machine.pull("toy", served).returncode == 0
    done = machine.pull("other", served)
    assert "other: bringing 0.0 MiB of 2.5 MiB" in done.stderr
    assert same(Path(done.stdout.strip()), other)
    assert len(list((machine.store.place / "files").iterdir())) == len(
        set(contents(other).values())
    )


def test_nobody_without_the_secret_gets_anything(
    new: New, tmp_path: Path, origin: Machine, served: str
) -> None:
    paths = ["", f"/{id_of(origin)}", f"/{id_of(origin)}/have", f"/{id_of(origin)}/files/{WEIGHTS}"]
    for path in paths:
        for told in ({}, {"Authorization": "Bearer a secret of this cluste"}):
            assert ask(served, f"/weights{path}", **told)[0] == 401
        assert (
            ask(served, f"/weights{path}", Authorization="Bearer a secret of this cluster")[0]
            == 200
        )
    wrong = tmp_path / "wrong"
    wrong.write_text("another secret than that")
    wrong.chmod(0o600)
    line = error(new("machine").pull("toy", served, secret=wrong), 2)
    assert f"toy: no source has it ({served} does not take the secret (401))" in line
    wrong.chmod(0o644)
    line = error(new("machine").pull("toy", served, secret=wrong), 2)
    assert "no private file of this user" in line and "mode 0600" in line


def test_ranges_are_those_of_http(origin: Machine, served: str, model: Path) -> None:
    path, known = f"/weights/{id_of(origin)}/files/{WEIGHTS}", "Bearer a secret of this cluster"
    whole = (model / WEIGHTS).read_bytes()
    assert ask(served, path, Authorization=known) == (200, whole)
    for asked, part in (("5-9", whole[5:10]), ("-3", whole[-3:]), ("7-", whole[7:])):
        answer = ask(served, path, Authorization=known, Range=f"bytes={asked}")
        assert answer == (206, part)
    assert ask(served, path, Authorization=known, Range=f"bytes={len(whole)}-")[0] == 416
    for odd in ("../../../secret", "%2e%2e/secret", "config.json/x", ".hidden"):
        at = f"/weights/{id_of(origin)}/files/{odd}"
        assert ask(served, at, Authorization=known)[0] == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8", "::", "machine.example"])
def test_strangers_are_not_listened_to(origin: Machine, host: str, secret: Path) -> None:
    line = error(origin.mirage("serve", "--secret", secret, "--host", host), 2)
    assert f"--host {host}: " in line


def test_a_wrong_chunk_is_noticed_and_taken_from_another(
    new: New, model: Path, origin: Machine, served: str
) -> None:
    good = new("good")
    assert good.pull("toy", served).returncode == 0
    flip(weights_of(origin), 3 * CHUNK)
    alone = new("alone")
    line = error(alone.pull("toy", served), 1)
    assert f"({served} sent 1 wrong chunks, run mirage weights verify there)" in line
    assert "no source sends the 0.1 MiB that are missing" in line
    assert not alone.store.is_whole(id_of(good))
    with good.serving() as (other, _):
        done = alone.pull("toy", served, other)
    assert done.returncode == 0, done.stderr
    assert same(Path(done.stdout.strip()), model)


def test_verify_finds_what_is_wrong_and_that_alone_comes_again(
    new: New, model: Path, origin: Machine, served: str
) -> None:
    machine = new("machine")
    machine.pull("toy", served)
    assert machine.mirage("verify").returncode == 0
    flip(weights_of(machine), 3 * CHUNK)
    done = machine.mirage("verify", "toy")
    assert error(done, 1).endswith("1 files are wrong: pull or add their models again")
    assert f"{WEIGHTS}: 1 of 41 chunks are wrong" in done.stdout
    assert not machine.store.is_whole(id_of(machine))
    done = machine.mirage("verify", "toy")
    assert error(done, 1).endswith(f"toy: only a part of it is in {machine.store.place}")
    assert "not whole: pull or add it again" in done.stdout
    done = machine.pull("toy", served)
    assert "toy: bringing 0.1 MiB of 2.5 MiB" in done.stderr
    assert same(Path(done.stdout.strip()), model)


@pytest.mark.slow
def test_a_file_that_is_cut_short_at_its_source_is_not_taken_for_whole(
    new: New, origin: Machine
) -> None:
    os.truncate(weights_of(origin), 20 * CHUNK + 7)
    machine = new("machine")
    with origin.serving() as (url, _):
        line = error(machine.pull("toy", url), 1)
        assert f"no source sends the 2.5 MiB that are missing ({url} has not all of it)" in line
    assert not machine.store.is_whole(id_of(origin))
    assert f"{WEIGHTS}: 21 of 41 chunks are wrong" in origin.mirage("verify").stdout


def test_a_sender_that_is_killed_midway_is_gone_on_from(
    new: New, model: Path, origin: Machine
) -> None:
    machine, model_id = new("machine"), id_of(origin)
    with origin.serving(*SLOW) as (url, process):
        pull = machine.begin("toy", url)
        machine.until(model_id, 4 * CHUNK)
        process.kill()
        process.wait()
        port = str(urlsplit(url).port)
        with origin.serving("--port", port) as (again, _):
            assert again == url
            code, folder, said = finished(pull)
    assert code == 0, said
    assert same(Path(folder), model)


def test_another_source_goes_on_where_one_is_killed(
    new: New, model: Path, origin: Machine, served: str
) -> None:
    good, machine = new("good"), new("machine")
    good.pull("toy", served)
    with origin.serving(*SLOW) as (first, process), good.serving(*SLOW) as (second, _):
        pull = machine.begin("toy", first, second)
        machine.until(id_of(origin), 4 * CHUNK)
        process.kill()
        code, folder, said = finished(pull)
    assert code == 0, said
    assert same(Path(folder), model)


def test_a_receiver_that_is_killed_goes_on_where_it_was(
    new: New, model: Path, origin: Machine
) -> None:
    machine, model_id = new("machine"), id_of(origin)
    with origin.serving(*SLOW) as (url, _):
        pull = machine.begin("toy", url)
        machine.until(model_id, 8 * CHUNK)
        pull.kill()
        finished(pull)
    assert not machine.store.is_whole(model_id)
    there = machine.here(model_id)
    assert 8 * CHUNK <= there < 41 * CHUNK
    assert machine.mirage("list").stdout.splitlines()[1].endswith("MiB")
    with origin.serving() as (url, _):
        done = machine.pull("toy", url)
    assert same(Path(done.stdout.strip()), model)
    left = (model / WEIGHTS).stat().st_size - there
    assert f"bringing {left / 2**20 + 0.001:.1f} MiB" in done.stderr


def test_marks_of_chunks_that_a_crash_has_lost_are_not_believed(
    new: New, model: Path, origin: Machine
) -> None:
    machine, model_id = new("machine"), id_of(origin)
    with origin.serving(*SLOW) as (url, _):
        pull = machine.begin("toy", url)
        machine.until(model_id, 8 * CHUNK)
        pull.kill()
        finished(pull)
    part = part_of(machine.store.content(weights_of(origin).name))
    part.write_bytes(bytes(part.stat().st_size))
    with origin.serving() as (url, _):
        done = machine.pull("toy", url)
    assert done.returncode == 0, done.stderr
    assert same(Path(done.stdout.strip()), model)


def test_a_receiver_sends_on_what_it_has_while_it_receives(
    new: New, model: Path, origin: Machine
) -> None:
    """A second machine fetches a model from a first one that is still fetching it from the origin.
    The second one never asks the origin, so all chunks come through the first.
    """
    first, second, model_id = new("first"), new("second"), id_of(origin)
    with origin.serving(*SLOW) as (url, _), first.serving() as (chained, _):
        one = first.begin("toy", url, patience_s=DEADLINE_S)
        first.until(model_id, CHUNK)
        with stopped(one):
            two = second.begin("toy", chained, patience_s=DEADLINE_S)
            second.until(model_id, CHUNK)
            assert not first.store.is_whole(model_id)
        for pull in (one, two):
            code, folder, said = finished(pull)
            assert code == 0, said
            assert same(Path(folder), model)


def test_receivers_of_one_sender_wait_for_their_turns(
    new: New, model: Path, origin: Machine
) -> None:
    machines = [new(f"machine{n}") for n in range(3)]
    with origin.serving("--rate", "4MiB") as (url, _):
        pulls = [machine.begin("toy", url) for machine in machines]
        for pull in pulls:
            code, folder, said = finished(pull)
            assert code == 0, said
            assert same(Path(folder), model)


def test_two_processes_bring_the_same_model_once(new: New, model: Path, origin: Machine) -> None:
    machine = new("machine")
    with origin.serving(*SLOW) as (url, _):
        one = machine.begin("toy", url, patience_s=DEADLINE_S)
        machine.until(id_of(origin), CHUNK)
        with stopped(one):
            two = machine.begin("toy", url)
            assert two.stderr is not None and "waiting for it" in two.stderr.readline()
            line = error(machine.mirage("remove", "toy"), 2) if machine.store.names() else ""
            line = line or error(machine.mirage("remove", id_of(origin)), 2)
            assert "another process brings it" in line
        ends = [finished(pull) for pull in (one, two)]
    assert [code for code, _, _ in ends] == [0, 0]
    assert sorted("MiB/s" in said for _, _, said in ends) == [False, True]
    assert same(Path(ends[1][1]), model)


def test_a_disk_that_is_full_is_one_line_and_what_came_is_kept(
    new: New, model: Path, served: str, origin: Machine
) -> None:
    machine = new("machine")
    limited = ("prlimit", f"--fsize={20 * CHUNK}", "--")
    line = error(machine.pull("toy", served, before=limited), 2)
    assert f"toy: no room at {machine.store.place} (file too large)" in line
    assert "what has come is kept" in line
    done = machine.pull("toy", served)
    assert same(Path(done.stdout.strip()), model)
    line = error(new("other").mirage("add", model, before=limited), 2)
    assert "model: no room at" in line
    assert not list((new("other").store.place / "files").iterdir())


def test_a_disk_without_room_is_said_before_anything_comes(
    new: New, served: str, tmp_path: Path
) -> None:
    machine = new("machine")
    machine.store.place.mkdir()
    mounted = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    small = ("unshare", "-rm", "sh", "-c", mounted, str(machine.store.place))
    if subprocess.run([*small, "true"], check=False).returncode:
        pytest.skip("no folder can be mounted here")
    line = error(machine.pull("toy", served, before=small), 2)
    assert f"toy: 2.5 MiB are to come, {machine.store.place} has 1.0 MiB left: make room" in line
    line = error(machine.mirage("add", tmp_path / "model", before=small), 2)
    assert f"{tmp_path / 'model'}: 2.5 MiB are to come" in line


def answering(url: str, path: str, wait_s: float) -> socket.socket | None:
    """Connection on which a request was sent, if its answer begins within `wait_s`;
    None otherwise.
    """
    connection = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\n{KNOWN}\r\nConnection: close\r\n\r\n"
    connection.sendall(head.encode())
    if not select.select([connection], [], [], wait_s)[0]:
        connection.close()
        return None
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


@pytest.mark.slow
def test_a_machine_sends_to_one_at_a_time_and_who_takes_nothing_loses_its_turn(
    new: New, tmp_path: Path
) -> None:
    """A receiver asks for a large file and reads nothing. A second one has to wait at first, and is
    answered once the first has lost its turn.
    """
    machine = new("machine")
    manifest = machine.add(make_model(tmp_path / "large", 64 * 2**20), "large")
    path = f"/weights/{manifest.id}/files"
    with machine.serving() as (url, _), ExitStack() as stack:
        first = answering(url, f"{path}/{WEIGHTS}", 60)
        assert first is not None
        stack.enter_context(first)
        assert answering(url, f"{path}/config.json", 1) is None
        second = answering(url, f"{path}/config.json", 60)
        assert second is not None
        stack.enter_context(second)


def test_what_is_not_here_yet_is_not_sent(new: New, model: Path, origin: Machine) -> None:
    machine, model_id = new("machine"), id_of(origin)
    with origin.serving(*SLOW) as (url, _):
        pull = machine.begin("toy", url)
        machine.until(model_id, 4 * CHUNK)
        pull.kill()
        finished(pull)
    manifest, whole = machine.store.manifest(model_id), (model / WEIGHTS).read_bytes()
    (here,) = [
        numbers
        for sha256, numbers in machine.store.have(manifest).items()
        if sha256 == weights_of(origin).name
    ]
    known = KNOWN.partition(" ")[2]
    with machine.serving() as (url, _):
        for chunk in range(41):
            begin, end = chunk * CHUNK, min((chunk + 1) * CHUNK, len(whole))
            path, ranged = f"/weights/{model_id}/files/{WEIGHTS}", f"bytes={begin}-{end - 1}"
            status, data = ask(url, path, Authorization=known, Range=ranged)
            assert status == (206 if chunk in here else 416)
            assert status == 416 or data == whole[begin:end]


def test_the_secret_is_not_taken_elsewhere(new: New) -> None:
    """A source redirects its clients to another address. They do not follow, so the secret is not
    sent there.
    """
    asked: list[tuple[str, str | None]] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = new("machine").mirage(*new("machine").pulling("toy", url)[:-1], "0")
        server.shutdown()
        thread.join()
    assert f"no source answers ({url} HTTP 302 Found)" in error(done, 1)
    assert {path for path, _ in asked} == {"/weights"}


def test_a_removed_model_leaves_what_others_have(
    new: New, tmp_path: Path, model: Path, origin: Machine
) -> None:
    other = make_model(tmp_path / "other")
    (other / "more.json").write_text("{}")
    origin.add(other, "other")
    done = origin.mirage("remove", "toy")
    assert done.returncode == 0 and "0.0 MiB are free again" in done.stdout
    assert same(origin.store.folder(origin.store.names()["other"]), other)
    assert origin.mirage("verify").returncode == 0
    assert "2.5 MiB are free again" in origin.mirage("remove", "other").stdout
    assert not list((origin.store.place / "files").iterdir())
    assert "has no model 'toy'" in error(origin.mirage("remove", "toy"), 2)


def test_an_addition_that_is_killed_leaves_nothing_that_lasts(new: New, model: Path) -> None:
    machine = new("machine")
    fifo = model / "z.bin"
    fifo.write_bytes(bytes(300 * 2**20))
    process = subprocess.Popen(machine.words("add", model), stdout=subprocess.PIPE, text=True)
    filling = machine.store.place / "filling"
    while not (filling.is_dir() and any(filling.iterdir())):
        assert process.poll() is None
    process.kill()
    process.wait()
    fifo.unlink()
    assert list(filling.iterdir()) and machine.store.ids() == []
    done = machine.mirage("add", model, "--name", "toy")
    assert done.returncode == 0, done.stderr
    assert list(filling.iterdir()) == []
    assert same(machine.store.folder(id_of(machine)), model)


def test_a_name_that_two_sources_have_of_two_models_is_refused(
    new: New, tmp_path: Path, served: str, origin: Machine
) -> None:
    other = new("other")
    other.add(make_model(tmp_path / "another", seed=2), "toy")
    machine = new("machine")
    with other.serving() as (url, _):
        line = error(machine.pull("toy", served, url), 2)
        assert "of that name: name one of them" in line
        assert machine.pull(id_of(other), served, url).returncode == 0
    assert "no source has it" in error(machine.pull("nothing", served), 2)
