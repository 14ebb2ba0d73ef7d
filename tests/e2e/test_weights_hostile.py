"""Hostile, slow or broken sources and receivers of weights do not hold others up."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hostile_source import (
    FILE,
    HAVE,
    LIST,
    MANIFEST,
    SECRET,
    Answer,
    honest,
    hostile,
    instead,
    never_ends,
    of_the_body,
    of_the_head,
    split,
    trickles,
)
from weight_machines import Machine, make_model, same

from mirage.weights import bringing, source
from mirage.weights.bringing import bring
from mirage.weights.problems import WeightsFailed, WeightsRefused
from mirage.weights.running import sending
from mirage.weights.sending import WeightSender
from mirage.weights.strangers import Strangers

pytestmark = pytest.mark.e2e

DEADLINE_S = 120
WEIGHTS = "model.safetensors"


class Two:
    """Two machines: the origin has the model `toy`, the other one has nothing."""

    def __init__(self, folder: Path) -> None:
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.origin, self.here = (
            Machine(folder / "origin", secret),
            Machine(folder / "here", secret),
        )
        self.model = make_model(folder / "model")
        self.id = self.origin.add(self.model, "toy").id

    def bring(
        self, answers: Mapping[str, Answer], *, wanted: str = "", beside: bool, patience_s: float
    ) -> Path:
        """Fetch the model from a source with the hostile `answers`, with a good source too if
        `beside`.
        """

        async def run() -> Path:
            async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
                good = await stack.enter_async_context(honest(self.origin.store))
                bad = await stack.enter_async_context(hostile(good, answers))
                sources = [bad, good] if beside else [bad]
                return await bring(
                    self.here.store,
                    wanted or self.id,
                    sources,
                    SECRET,
                    lambda line: None,
                    patience_s=patience_s,
                )

        return asyncio.run(run())


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    """Two machines, with short time-outs so that tests take little time."""
    for name, seconds in (("TOLD_S", 1.0), ("HEAD_S", 1.0), ("CHUNK_S", 8.0)):
        monkeypatch.setattr(source, name, seconds)
    monkeypatch.setattr(bringing, "STALL_S", 0.5)
    bomb()
    return Two(tmp_path)


async def wrong_range(writer: asyncio.StreamWriter, right: bytes) -> None:
    """Answer with as many bytes as requested, but from another range of the file, which the
    answer's head names.
    """
    head, body = split(right)
    head = head.replace(b"Content-Range: bytes ", b"Content-Range: bytes 9")
    writer.write(head + b"\r\n\r\n" + body[1:] + b"x")


@cache
def bomb() -> bytes:
    """A hundred MiB of zeros, compressed. It is made once, because that takes a second in which no
    request is answered.
    """
    return gzip.compress(bytes(100 * 2**20))


async def zipped(writer: asyncio.StreamWriter, right: bytes) -> None:
    """Answer with a compressed bomb that is as long as the requested bytes."""
    body = bomb()[: len(split(right)[1])]
    head = f"HTTP/1.1 206 x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def longer(writer: asyncio.StreamWriter, right: bytes) -> None:
    head = f"HTTP/1.1 206 x\r\nContent-Length: {2**63}\r\n\r\n"
    writer.write(head.encode() + split(right)[1])


async def shorter(writer: asyncio.StreamWriter, right: bytes) -> None:
    """Answer whose connection ends in the middle of a chunk."""
    writer.write(right[: len(right) // 2])


DEEP = b'{"models":[],"more":' + b"[" * 100_000
HOSTILE: dict[str, dict[str, Answer]] = {
    "a list without an end": {LIST: never_ends},
    "a manifest without an end": {MANIFEST: never_ends},
    "chunks without an end": {HAVE: never_ends},
    "a file without an end": {FILE: never_ends},
    "a list of no text": {LIST: instead(b'{"models":[{"id":"\xff"}]}')},
    "a list as deep as a stack": {LIST: instead(DEEP)},
    "chunks of no text": {HAVE: instead(b'{"chunks":{"\xff":[]}}')},
    "another manifest": {MANIFEST: instead(b"{}")},
    "no manifest": {MANIFEST: instead(b"", "404 Not Found")},
    "chunks that are not there": {HAVE: instead(b'{"chunks":{"a":[-1,99]}}')},
    "a list that trickles": {LIST: trickles(of_the_head)},
    "a manifest that trickles": {MANIFEST: trickles(of_the_body)},
    "chunks that trickle": {HAVE: trickles(of_the_body)},
    "a file whose head trickles": {FILE: trickles(of_the_head)},
    "a file that trickles": {FILE: trickles(of_the_body)},
    "another range": {FILE: wrong_range},
    "a bomb": {FILE: zipped},
    "2**63 bytes": {FILE: longer},
    "half of it": {FILE: shorter},
    "another address": {FILE: instead(b"", "302 Found", "Location: file:///etc/passwd")},
}


@pytest.mark.parametrize("odd", HOSTILE)
def test_a_hostile_source_does_not_hold_up_a_good_one(two: Two, odd: str) -> None:
    folder = two.bring(HOSTILE[odd], beside=True, patience_s=30.0)
    assert same(folder, two.model)


@pytest.mark.parametrize("odd", HOSTILE)
def test_a_hostile_source_alone_is_one_line_and_nothing_is_whole(two: Two, odd: str) -> None:
    with pytest.raises((WeightsFailed, WeightsRefused)) as told:
        two.bring(HOSTILE[odd], beside=False, patience_s=1.0)
    assert "\n" not in str(told.value)
    assert not two.here.store.is_whole(two.id)


def test_a_source_that_is_always_busy_is_given_up(two: Two) -> None:
    with pytest.raises(WeightsFailed, match="no source sends"):
        two.bring({FILE: instead(b"", "503 Busy")}, beside=False, patience_s=0.2)


def test_words_of_a_source_are_printable(two: Two) -> None:
    escaping = instead(b"", "500 \x1b[2J\x1b]0;owned\x07")
    with pytest.raises(WeightsFailed) as told:
        two.bring({LIST: escaping}, beside=False, patience_s=0.0, wanted="toy")
    assert str(told.value).isprintable()


def test_a_slow_receiver_does_not_keep_others_from_their_turns(two: Two, tmp_path: Path) -> None:
    """A receiver reads a long file so slowly that it never counts as stalled. Another receiver gets
    its turn all the same.
    """
    large = two.origin.add(make_model(tmp_path / "large", 64 * 2**20), "large")

    async def ask(url: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=2**16)
        head = f"GET /weights/{large.id}/files/{path} HTTP/1.1\r\nHost: x\r\n"
        writer.write(f"{head}Authorization: Bearer {SECRET}\r\n\r\n".encode())
        return reader, writer

    async def run() -> None:
        sender = WeightSender(two.origin.store, SECRET, held_s=0.2)
        async with sending(sender, "127.0.0.1", 0) as url, asyncio.timeout(DEADLINE_S):
            slow, held = await ask(url, WEIGHTS)
            await slow.readexactly(2**16)

            async def drip() -> None:
                while await slow.read(2**18):
                    await asyncio.sleep(0.1)

            dripping = asyncio.create_task(drip())
            quick, other = await ask(url, "config.json")
            assert (await quick.readline()).startswith(b"HTTP/1.1 200")
            assert not dripping.done()
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            held.close()
            other.close()

    asyncio.run(run())


def test_who_does_not_tell_the_secret_does_not_stay(two: Two) -> None:
    """A wrong secret ends the connection. Connections on which nothing is sent are limited in
    number and time.
    """

    async def run() -> None:
        sender = WeightSender(two.origin.store, SECRET)
        sender.strangers = Strangers(most=8, wait_s=DEADLINE_S)
        async with sending(sender, "127.0.0.1", 0) as url, asyncio.timeout(DEADLINE_S):
            where = urlsplit(url)
            silent = [await asyncio.open_connection(where.hostname, where.port) for _ in range(9)]
            assert await silent[0][0].read() == b""
            _, writer = silent[8]
            for secret in (SECRET, "guess", SECRET):
                head = f"GET /weights HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n"
                writer.write(head.encode())
            told = await silent[8][0].read()
            assert told.count(b"HTTP/1.1 200 ") == told.count(b"HTTP/1.1 401 ") == 1
            sender.strangers = Strangers(wait_s=0.1)
            reader, _ = await asyncio.open_connection(where.hostname, where.port)
            assert await reader.read() == b""
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_a_model_of_more_files_than_a_process_may_open_comes(two: Two) -> None:
    for number in range(200):
        (two.model / f"{number}.bin").write_bytes(str(number).encode())
    few = ("prlimit", "--nofile=64", "--")
    done = two.origin.mirage("add", two.model, "--name", "many", before=few)
    assert done.returncode == 0, done.stderr
    with two.origin.serving() as (url, _):
        done = two.here.pull("many", url, before=few)
    assert done.returncode == 0, done.stderr
    assert same(Path(done.stdout.strip()), two.model)


def test_names_of_files_are_taken_as_they_are(two: Two) -> None:
    for name in ("a%2Fb c?d#e+f", "ä\\..\\x", "%2e%2e", "x&y=z;", "q'\"<>"):
        (two.model / name).write_text(name)
    model = two.origin.add(two.model, "odd").id
    folder = two.bring({}, beside=True, patience_s=3.0, wanted=model)
    assert same(folder, two.model)


@pytest.mark.parametrize("odd", ["a link to nothing", "a link to a folder", "a pipe"])
def test_a_folder_with_what_is_no_file_is_refused(two: Two, tmp_path: Path, odd: str) -> None:
    place = two.model / "model-00002.safetensors"
    match odd:
        case "a link to nothing":
            place.symlink_to("blob")
        case "a link to a folder":
            place.symlink_to(two.model / "1_Pooling")
        case "a pipe":
            os.mkfifo(place)
    done = two.origin.mirage("add", two.model, "--name", "odd")
    assert done.returncode == 2 and f"{place}: it is " in done.stderr, done.stderr
    assert "odd" not in two.origin.store.names()


def test_a_manifest_that_a_disk_has_damaged_harms_no_other_model(two: Two, tmp_path: Path) -> None:
    other = two.origin.add(make_model(tmp_path / "other", seed=2), "other").id
    damaged = two.origin.store.place / "manifests" / two.id
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert "other" in two.origin.mirage("list").stdout
    with two.origin.serving() as (url, _):
        assert two.here.pull("other", url).returncode == 0
        assert "no source has it" in two.here.pull("toy", url).stderr
    freed = two.origin.mirage("remove", "other")
    assert freed.returncode == 0 and "0.0 MiB are free" in freed.stdout, freed.stderr
    removed = two.origin.mirage("remove", "toy")
    assert removed.returncode == 0 and "5.0 MiB are free" in removed.stdout, removed.stderr
    assert not two.origin.store.ids() and other not in two.origin.store.names()


def test_what_a_manifest_was_lost_of_comes_anew(two: Two) -> None:
    two.bring({}, beside=True, patience_s=30.0)
    two.here.mirage("verify")
    (two.here.store.place / "manifests" / two.id).write_bytes(b"")
    folder = two.here.store.folder(two.id)
    folder.rename(folder.with_name("gone"))
    assert same(two.bring({}, beside=True, patience_s=30.0), two.model)
