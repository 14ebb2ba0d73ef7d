"""Display while a command works: a replay, a tuner, a fetch of unknown length."""

import io

import pytest
from rich.console import Console

from mirage.tools.replay.client import Journal, Outcome
from mirage.tools.replay.display import display
from mirage.tools.replay.trail import NOTHING
from mirage.tools.report import progress
from mirage.tools.tune.progress import shown as stages
from mirage.workload.dealing import TenantRequest

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """A clock that does not advance."""
    monkeypatch.setattr(progress, "monotonic", lambda: 7.0)


def journal(sent: int, failed: int, finished: int) -> Journal:
    found = Journal()
    for number in range(sent):
        found.note_sent()
        call = TenantRequest(number, 0.0, "a", 1, 1, False)
        if number < finished:
            error = "no" if number < failed else None
            found.note(Outcome(call, 0, 0, number / 2, 0, 0, (), 1, 1, NOTHING, error))
    return found


def shown(terminal: bool, *journals: Journal) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    with display(console, "pooled [x]", 4) as seen:
        seen.starting(0.2)
        for one in journals:
            seen.running(one)
    return out.getvalue()


def test_plain_lines_are_few():
    lines = shown(False, journal(1, 0, 0), journal(3, 1, 2), journal(4, 1, 4)).splitlines()
    assert lines == [
        "pooled [x]: starting the server, 0 s",
        "pooled [x]: 4 sent, 4 of 4 finished, 1 failed, 0 s",
    ]


def test_plain_lines_come_now_and_then(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    lines = shown(False, journal(3, 0, 2)).splitlines()
    assert lines[-1] == "pooled [x]: 3 sent, 2 of 4 finished, 0 s"


def test_a_terminal_shows_the_newest_counts():
    text = shown(True, journal(3, 1, 2))
    assert "pooled [x]" in text and "3 sent, 2 of 4 finished, 1 failed" in text


def test_a_journal_counts():
    found = journal(5, 1, 3)
    assert (found.sent, found.failed, len(found.outcomes), found.duration_s) == (5, 1, 3, 1.0)


def test_stages_of_a_tuner_are_said_at_once_and_counted_seldom(monkeypatch):
    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with stages(Console(file=out)) as seen:
        seen.stage("looking at the load")
        seen.stage("searching", 8)
        for _ in range(3):
            now[0] += 6
            seen.ended()
    assert out.getvalue().splitlines() == [
        "mirage: tune: looking at the load, 0 windows, 0 s",
        "mirage: tune: searching, 0 of at most 8 windows, 0 s",
        "mirage: tune: searching, 2 of at most 8 windows, 12 s",
    ]


@pytest.mark.parametrize("total", [None, 8])
def test_a_live_line_has_the_note_and_goes_unless_it_stays(total):
    text = {}
    for stays in (False, True):
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=120)
        with progress.progress("[1/4] link", console, stays=stays) as shown:
            shown.show("[2] of them", 2, total)
        text[stays] = out.getvalue()
        assert "[1/4] link" in text[stays] and "[2] of them" in text[stays]
    erased = "\x1b[2K"
    assert text[False].count(erased) > text[True].count(erased)
