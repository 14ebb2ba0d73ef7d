"""Adoption of the engines that a killed server has left: those that go on, those that are ended,
and the memory that stays reserved for them.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from world import SHAPE

from mirage.config import Config
from mirage.control.arbiter import Arbiter
from mirage.control.ledger import Ledger, OverCommitError
from mirage.control.targets import asleep, unnumbered
from mirage.processes.marks import MarkedProcess, ProcessMark, boot_id, mark_of
from mirage.protocol import PROTOCOL_VERSION, Allotment, EngineHoldings, Hello, Report, Turn
from mirage.serve.adoption.book import RunBook
from mirage.serve.adoption.code import code_of_engines, order_of
from mirage.serve.adoption.judging import EngineWanted, unfit, unwelcome
from mirage.serve.adoption.record import (
    RECORD_FORM,
    ConfigRecord,
    EngineRecord,
    FoundRecord,
    RunRecord,
    read_record,
)

pytestmark = pytest.mark.pure

SERVER, CORE = ProcessMark(10, 100), ProcessMark(11, 110)
LEFT = EngineRecord(SERVER, "order", "a.log", CORE, serves=True)
WANTED = EngineWanted("order", "a.log")
ALLOTMENT = replace(unnumbered(SHAPE, 0, 0, 10), revision=7)
REPORT = Report(7, True, ALLOTMENT.grant_bytes, 0, 0, 10, 2, running=1, kv_usable_extents=10)
HELLO = Hello(
    PROTOCOL_VERSION,
    "a",
    CORE.pid,
    SHAPE,
    ALLOTMENT.grant_bytes,
    EngineHoldings(ALLOTMENT, REPORT),
)


# -- who goes on -------------------------------------------------------------------------------


def test_one_that_is_as_it_would_be_started_goes_on() -> None:
    assert unfit(LEFT, WANTED, lives=True) == ""


@pytest.mark.parametrize(
    ("left", "wanted", "lives", "why"),
    [
        (LEFT, WANTED, False, "its API server has ended"),
        (LEFT, None, True, "its tenant is not served"),
        (replace(LEFT, serves=False), WANTED, True, "it had not served yet"),
        (replace(LEFT, core=None), WANTED, True, "it had not served yet"),
        (LEFT, WANTED._replace(order="other"), True, "its model, its arguments"),
        (LEFT, WANTED._replace(log="b.log"), True, "b.log is wanted"),
    ],
)
def test_any_other_is_ended_for_a_reason(
    left: EngineRecord, wanted: EngineWanted | None, lives: bool, why: str
) -> None:
    assert why in unfit(left, wanted, lives=lives)


def holding(**changes: object) -> Hello:
    report = replace(REPORT, **changes)  # type: ignore[arg-type]
    return replace(HELLO, holdings=EngineHoldings(ALLOTMENT, report))


@pytest.mark.parametrize(
    ("hello", "left", "found", "why"),
    [
        (HELLO, LEFT, ALLOTMENT.grant_bytes, ""),
        (holding(held_bytes=9 * ALLOTMENT.grant_bytes), LEFT, 9 * ALLOTMENT.grant_bytes, ""),
        (HELLO, None, 0, "nobody awaits it"),
        (replace(HELLO, version=PROTOCOL_VERSION + 1), LEFT, 0, "it speaks protocol"),
        (replace(HELLO, pid=12), LEFT, 0, "it is process 12, and 11 was left"),
        (replace(HELLO, holdings=None), LEFT, 0, "it does not say what it holds"),
        (holding(revision=6), LEFT, 0, "its report does not follow its allotment"),
        (HELLO, LEFT, ALLOTMENT.grant_bytes + 1, "and may hold"),
    ],
)
def test_one_that_says_hello_again_is_the_one_that_was_left(
    hello: Hello, left: EngineRecord | None, found: int, why: str
) -> None:
    said = unwelcome(hello, left, found)
    assert why in said and bool(said) is bool(why)


# -- the books ---------------------------------------------------------------------------------


def grant(revision: int, nbytes: int) -> Allotment:
    return Allotment(
        revision=revision, layers_remapped=0, stream_slots=0, kv_extents=0, grant_bytes=nbytes
    )


def test_what_was_granted_stays_reserved_held_or_not() -> None:
    book = Ledger(100)
    book.adopted("a", grant(7, 60), 40)
    book.adopted("b", grant(3, 10), 30)  # it was told to give back
    assert (book.reserved_bytes("a"), book.reserved_bytes("b"), book.free_bytes) == (60, 30, 10)
    with pytest.raises(OverCommitError):
        book.adopted("c", grant(1, 11), 0)
    book.reported("a", 7, 40)
    book.reported("b", 3, 10)
    assert (book.reserved_bytes("a"), book.free_bytes) == (60, 30)
    book.offer("a", grant(8, 90))
    assert book.reserved_bytes("a") == 90


def arbiter(mode: str = "spatial") -> Arbiter:
    tenants = [{"name": name, "model": "/m", "share": 50} for name in "ab"]
    device = {"memory": 4096, "page": 4096}
    told = {"device": device, "tenants": tenants, "sharing": {"mode": mode}}
    return Arbiter.of(Config.model_validate(told))


def test_revisions_go_on_where_the_last_server_left_them() -> None:
    made = arbiter()
    made.joined(HELLO, 0.0)
    assert made.controller.reserved_bytes("a") == ALLOTMENT.grant_bytes
    told = [message for name, message in made.decide(0.0) if name == "a"]
    assert all(message.revision > 7 for message in told if isinstance(message, Allotment))
    made.reported("a", REPORT, 0.1)


def test_one_that_sleeps_goes_on_sleeping_and_lends_its_share() -> None:
    made = arbiter()
    sleeps = replace(asleep(SHAPE), revision=9)
    report = replace(REPORT, revision=9, held_bytes=sleeps.grant_bytes, asleep=True)
    made.joined(replace(HELLO, holdings=EngineHoldings(sleeps, report)), 0.0)
    assert made.controller.reserved_bytes("a") == sleeps.grant_bytes
    assert not made.decide(0.0)
    made.goes_on("a", 1.0)
    (woken,) = [message for _, message in made.decide(1.0) if isinstance(message, Allotment)]
    assert woken.revision == 10 and not woken.asleep


def test_in_turns_nobody_has_one_until_it_is_given() -> None:
    made = arbiter("temporal")
    for name in "ab":
        made.joined(replace(HELLO, tenant=name), 0.0)
    turns = [message for _, message in made.decide(0.0) if isinstance(message, Turn)]
    assert turns == [Turn(True)], "one of them, and the other is told nothing yet"


# -- what is recorded --------------------------------------------------------------------------


def record(folder: Path) -> RunRecord:
    me = mark_of(os.getpid())
    assert me is not None
    told = ConfigRecord({"tenants": []}, "c.yaml", "/", "")
    found = FoundRecord({}, {}, {}, {})
    return RunRecord(RECORD_FORM, "host c", boot_id(), "code", me, 60.0, [str(folder)], told, found)


def test_a_record_says_what_runs(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run.json", record(tmp_path))
    assert read_record(tmp_path / "run.json") is None
    book.starts()
    pid = os.getpid()
    book.began("a", pid, "order", Path("a.log"))
    book.came("a", pid)
    book.serves("a")
    book.made("a", {"sem.mp-1": 1})
    book.made("a", {"sem.mp-2": 2})
    me = mark_of(pid)
    found = read_record(tmp_path / "run.json")
    assert found is not None and me is not None
    semaphores = {"sem.mp-1": 1, "sem.mp-2": 2}
    engine = EngineRecord(me, "order", "a.log", me, serves=True, semaphores=semaphores)
    assert found.engines == {"a": engine}
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    book.over("a")
    found = read_record(tmp_path / "run.json")
    assert found is not None and found.engines == {}


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff"])
def test_a_file_that_is_no_record_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "run.json").write_bytes(damage)
    assert read_record(tmp_path / "run.json") is None


def test_one_of_another_form_is_none(tmp_path: Path) -> None:
    told = replace(record(tmp_path), form=RECORD_FORM + 1)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(told))
    assert read_record(tmp_path / "run.json") is None


def test_a_process_is_known_again_by_its_start() -> None:
    me = mark_of(os.getpid())
    assert me is not None
    found = MarkedProcess.found(me)
    assert found is not None and found.poll() is None
    found.close()
    assert MarkedProcess.found(replace(me, start=me.start + 1)) is None


def test_an_order_is_another_one_with_other_weights_arguments_or_variables(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("1")
    before = order_of(["python", "-m", "x"], {"VLLM_X": "1", "TERM": "a"}, tmp_path)
    assert order_of(["python", "-m", "x"], {"VLLM_X": "1", "TERM": "b"}, tmp_path) == before
    assert order_of(["python", "-m", "y"], {"VLLM_X": "1"}, tmp_path) != before
    assert order_of(["python", "-m", "x"], {"VLLM_X": "2"}, tmp_path) != before
    (tmp_path / "w").write_text("12")
    assert order_of(["python", "-m", "x"], {"VLLM_X": "1"}, tmp_path) != before


def test_the_code_of_engines_is_the_same_twice() -> None:
    assert code_of_engines() == code_of_engines()
