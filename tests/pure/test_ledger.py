"""Accounts: whatever engines do within their promise, the device is never over-committed."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.control.ledger import (
    AlreadyJoinedError,
    BadRevisionError,
    BrokenPromiseError,
    Ledger,
    LedgerError,
    OverCommitError,
    UnknownTenantError,
)
from mirage.protocol import Allotment
from tests.examples import examples

pytestmark = pytest.mark.pure

DEVICE = 100


def grant(revision: int, nbytes: int) -> Allotment:
    return Allotment(
        revision=revision, layers_remapped=0, stream_slots=1, kv_extents=0, grant_bytes=nbytes
    )


def ledger(**held: int) -> Ledger:
    book = Ledger(DEVICE)
    for name, nbytes in held.items():
        book.joined(name, nbytes)
    return book


def test_joining_reserves_what_is_held() -> None:
    book = ledger(a=30, b=50)
    assert book.free_bytes == 20
    with pytest.raises(OverCommitError, match=r"'c' would hold 21 .* 20 of 100"):
        book.joined("c", 21)
    book.joined("c", 20)
    assert book.free_bytes == 0


def test_a_raise_is_reserved_before_it_is_seen() -> None:
    book = ledger(a=30, b=50)
    book.offer("a", grant(1, 50))
    assert book.free_bytes == 0
    with pytest.raises(OverCommitError):
        book.offer("b", grant(1, 51))


def test_a_lowered_grant_frees_only_what_is_reported_gone() -> None:
    book = ledger(a=60)
    book.offer("a", grant(1, 20))
    assert book.free_bytes == 40
    book.reported("a", 1, 35)
    assert book.free_bytes == 65
    book.reported("a", 1, 10)
    assert book.free_bytes == 80


def test_an_older_larger_grant_counts_until_a_newer_one_is_seen() -> None:
    book = ledger(a=0)
    book.offer("a", grant(1, 80))
    book.offer("a", grant(2, 10))
    book.reported("a", 1, 5)
    assert book.free_bytes == 20
    book.reported("a", 2, 5)
    assert book.free_bytes == 90


def test_death_frees_everything() -> None:
    book = ledger(a=60, b=40)
    book.offer("a", grant(1, 10))
    book.lost("a")
    assert book.free_bytes == 60
    book.lost("a")
    book.joined("a", 60)


def test_refusals_have_names() -> None:
    book = ledger(a=10)
    with pytest.raises(AlreadyJoinedError):
        book.joined("a", 0)
    with pytest.raises(UnknownTenantError):
        book.offer("b", grant(1, 1))
    with pytest.raises(BadRevisionError):
        book.reported("a", 1, 10)
    book.offer("a", grant(4, 10))
    with pytest.raises(BadRevisionError):
        book.offer("a", grant(4, 10))
    book.reported("a", 4, 10)
    with pytest.raises(BadRevisionError):
        book.reported("a", 0, 10)


def test_a_broken_promise_is_named_and_booked() -> None:
    book = ledger(a=10)
    with pytest.raises(BrokenPromiseError, match="holds 90 bytes and may hold 10"):
        book.reported("a", 0, 90)
    assert book.free_bytes == 10
    with pytest.raises(OverCommitError):
        book.joined("b", 11)


class Accounts(RuleBasedStateMachine):
    """Engines that may hold at any moment as much as their promise allows. The memory that they
    really hold must always fit into the device.
    """

    names = st.sampled_from(["a", "b", "c"])
    amounts = st.integers(0, DEVICE)

    def __init__(self) -> None:
        super().__init__()
        self.book = Ledger(DEVICE)
        self.held: dict[str, int] = {}
        self.seen: dict[str, Allotment] = {}
        self.mail: dict[str, list[Allotment]] = {}
        self.reports: dict[str, list[tuple[int, int]]] = {}
        self.revision = 0

    @rule(name=names, held=amounts)
    def join(self, name: str, held: int) -> None:
        if name in self.held or held > self.book.free_bytes:
            with pytest.raises(LedgerError):
                self.book.joined(name, held)
            return
        self.book.joined(name, held)
        self.held[name], self.seen[name] = held, grant(0, 0)
        self.mail[name], self.reports[name] = [], []

    @precondition(lambda self: self.held)
    @rule(data=st.data(), nbytes=amounts)
    def offer(self, data: st.DataObject, nbytes: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.revision += 1
        try:
            self.book.offer(name, grant(self.revision, nbytes))
        except OverCommitError:
            assert nbytes > self.book.free_bytes + self.book.reserved_bytes(name)
        else:
            self.mail[name].append(grant(self.revision, nbytes))

    @precondition(lambda self: any(self.mail.values()))
    @rule(data=st.data())
    def see(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(n for n in self.mail if self.mail[n])))
        self.seen[name] = self.mail[name].pop(0)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def take_or_give(self, data: st.DataObject) -> None:
        """Change what an engine holds: up to its grant, or, if it holds more than that, only
        downwards.
        """
        name = data.draw(st.sampled_from(sorted(self.held)))
        most = max(self.held[name], self.seen[name].grant_bytes)
        self.held[name] = data.draw(st.integers(0, most))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def send_report(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.reports[name].append((self.seen[name].revision, self.held[name]))

    @precondition(lambda self: any(self.reports.values()))
    @rule(data=st.data())
    def get_report(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(n for n in self.reports if self.reports[n])))
        self.book.reported(name, *self.reports[name].pop(0))

    @rule(name=names)
    def die(self, name: str) -> None:
        self.book.lost(name)
        for state in (self.held, self.seen, self.mail, self.reports):
            state.pop(name, None)

    @invariant()
    def the_device_holds_what_tenants_hold(self) -> None:
        self.book.check()
        assert sum(self.held.values()) <= DEVICE
        assert all(self.held[n] <= self.book.reserved_bytes(n) for n in self.held)


TestAccounts = Accounts.TestCase
TestAccounts.settings = examples(150, stateful_step_count=40)
