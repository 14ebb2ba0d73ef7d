"""Detection of overdue debtors: a tenant without progress is overdue, and one that gives memory
back slowly is not.
"""

from __future__ import annotations

import msgspec
import pytest

from mirage.config import HANG_S
from mirage.control.debts import Debtor, Overdue
from mirage.protocol import Report

pytestmark = pytest.mark.pure

REPORT = Report(1, True, 100, 0, 1, 10, 5)


def again() -> Report:
    """Copy of the report: the engine sends the same content once more."""
    return msgspec.structs.replace(REPORT)


def test_one_that_says_nothing_is_overdue() -> None:
    overdue, debtor = Overdue(HANG_S), Debtor("a", 50, False, REPORT)
    assert overdue.look([debtor], 100.0) == {}
    assert overdue.look([debtor], 100.0 + HANG_S - 0.1) == {}
    assert overdue.look([debtor], 100.0 + HANG_S) == {"a": HANG_S}


def test_one_whose_running_requests_need_the_memory_is_waited_for_while_it_reports() -> None:
    overdue = Overdue(10.0)
    for now in range(100):
        assert overdue.look([Debtor("a", 50, False, again())], float(now)) == {}


def test_one_that_gives_back_slowly_is_not_overdue() -> None:
    overdue = Overdue(10.0)
    for step in range(50):
        debtor = Debtor("a", 50 - step, True, again())
        assert overdue.look([debtor], 9.0 * step) == {}


def test_one_that_reports_and_gives_nothing_back_is_overdue() -> None:
    overdue = Overdue(10.0)
    for now in range(10):
        assert overdue.look([Debtor("a", 50, True, again())], float(now)) == {}
    assert overdue.look([Debtor("a", 50, True, again())], 10.0) == {"a": 10.0}


def test_time_counts_from_when_it_was_told() -> None:
    overdue = Overdue(10.0)
    overdue.look([Debtor("a", 50, False, REPORT)], 0.0)
    overdue.look([Debtor("a", 50, True, REPORT)], 9.0)
    assert overdue.look([Debtor("a", 50, True, REPORT)], 18.0) == {}
    assert overdue.look([Debtor("a", 50, True, REPORT)], 19.0) == {"a": 10.0}


def test_one_that_owes_no_more_is_forgotten() -> None:
    overdue = Overdue(10.0)
    overdue.look([Debtor("a", 50, True, REPORT)], 0.0)
    overdue.look([], 5.0)
    assert overdue.look([Debtor("a", 50, True, REPORT)], 12.0) == {}
