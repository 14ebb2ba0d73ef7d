"""What is shown while a replay runs."""

import io

import pytest
from rich.console import Console

from mirage.tools.replay import progress
from mirage.tools.replay.client import Journal, Outcome
from mirage.tools.replay.trail import NOTHING
from mirage.workload.dealing import Call

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """A clock that stands."""
    monkeypatch.setattr(progress, "monotonic", lambda: 7.0)


def journal(sent: int, failed: int, finished: int) -> Journal:
    found = Journal()
    for number in range(sent):
        found.note_sent()
        call = Call(number, 0.0, "a", 1, 1, False)
        if number < finished:
            error = "no" if number < failed else None
            found.note(Outcome(call, 0, 0, number / 2, 0, 0, (), 1, 1, NOTHING, error))
    return found


def shown(terminal: bool, *journals: Journal) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    with progress.display(console, "pooled [x]", 4) as display:
        display.starting(0.2)
        for one in journals:
            display.running(one)
    return out.getvalue()


def test_plain_lines_are_few():
    lines = shown(False, journal(1, 0, 0), journal(3, 1, 2), journal(4, 1, 4)).splitlines()
    assert lines == [
        "pooled [x]: starting the server, 0 s",
        "pooled [x]: 4 sent, 4 of 4 finished, 1 failed, 0 s",
    ]


def test_plain_lines_come_now_and_then(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    lines = shown(False, journal(3, 0, 2)).splitlines()
    assert lines[-1] == "pooled [x]: 3 sent, 2 of 4 finished, 0 s"


def test_a_terminal_shows_the_newest_counts():
    text = shown(True, journal(3, 1, 2))
    assert "pooled [x]" in text and "3 sent, 2 of 4 finished, 1 failed" in text


def test_a_journal_counts():
    found = journal(5, 1, 3)
    assert (found.sent, found.failed, len(found.outcomes), found.duration_s) == (5, 1, 3, 1.0)
