"""Books of the keeper of weights: who gets a master, who fills it, and which one goes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.keeper.books import (
    DropMaster,
    GiveMaster,
    KeeperBooks,
    KeeperDeed,
    LetFill,
    TurnAway,
)

pytestmark = pytest.mark.pure

IDLE, MOST = 100, 250


def made(idle: int = IDLE, most: int = MOST) -> KeeperBooks:
    return KeeperBooks(idle, most)


def test_one_fills_and_others_wait_for_it() -> None:
    books = made()
    assert books.asked(1, "a", "x", 40) == [LetFill(1, "x")]
    assert books.asked(2, "b", "x", 40) == []
    assert books.tenants == []
    assert books.filled(1, 40) == [GiveMaster(2, "x")]
    assert books.asked(3, "c", "x", 40) == [GiveMaster(3, "x")]
    assert (books.tenants, books.used_bytes, books.idle_bytes) == (["a", "b", "c"], 40, 0)


def test_the_half_of_one_that_ends_is_dropped_and_the_next_fills_anew() -> None:
    books = made()
    books.asked(1, "a", "x", 40)
    books.asked(2, "b", "x", 40)
    books.asked(3, "c", "x", 40)
    assert books.gone(1) == [DropMaster("x"), LetFill(2, "x")]
    assert books.gone(3) == []
    assert books.gone(2) == [DropMaster("x")]
    assert books.masters == {}


def test_what_was_idle_for_longest_goes_first() -> None:
    books = made()
    for member, name in enumerate("xyz"):
        books.asked(member, name, name, 40)
        books.filled(member, 40)
    assert [books.gone(1), books.gone(0), books.gone(2)] == [[], [], [DropMaster("y")]]
    assert books.tenants == ["x", "z"]


def test_idle_ones_make_room_for_those_in_use_which_nothing_drops() -> None:
    books = made(most=90)
    books.asked(1, "a", "x", 40)
    books.filled(1, 40)
    assert books.gone(1) == []
    assert books.asked(2, "b", "y", 60) == [LetFill(2, "y"), DropMaster("x")]
    assert books.asked(3, "c", "z", 60) == [LetFill(3, "z")]
    assert books.used_bytes == 120


def test_a_tenant_with_other_weights_has_those_alone() -> None:
    books = made()
    books.asked(1, "a", "x", 40)
    books.filled(1, 40)
    books.gone(1)
    books.asked(2, "a", "y", 40)
    books.filled(2, 40)
    assert [name for name, book in books.masters.items() if book.tenants] == ["y"]


def test_an_idle_master_goes_with_the_last_tenant_that_comes_back_for_it() -> None:
    books = made()
    for member, tenant in enumerate("ab"):
        books.asked(member, tenant, "x", 40)
    books.filled(0, 40)
    assert (books.gone(0), books.gone(1), books.forgets("a")) == ([], [], [])
    assert books.forgets("nobody") == []
    assert books.forgets("b") == [DropMaster("x")]
    assert (books.tenants, books.idle_bytes) == ([], 0)


def test_one_in_use_goes_with_its_last_engine_if_no_tenant_comes_back() -> None:
    books = made()
    books.asked(1, "a", "x", 40)
    books.filled(1, 40)
    assert books.forgets("a") == []
    assert books.gone(1) == [DropMaster("x")]


def test_masters_are_kept_for_those_tenants_alone_that_were_told() -> None:
    books = made()
    for member, (tenant, identity) in enumerate([("a", "x"), ("b", "x"), ("c", "y")]):
        books.asked(member, tenant, identity, 40)
    books.filled(0, 40)
    books.filled(2, 40)
    assert (books.keeps_for("bc"), books.tenants) == ([], ["b", "c"])
    assert [books.gone(member) for member in range(3)] == [[], [], []]
    assert (books.keeps_for("ab"), books.tenants) == ([DropMaster("y")], ["a", "b"])
    assert books.keeps_for("") == [DropMaster("x")]
    books.asked(3, "a", "x", 40)  # a keeper may hear of its engine after that
    assert (books.filled(3, 40), books.tenants) == ([], [])
    assert books.gone(3) == [DropMaster("x")]


def test_weights_that_do_not_suit_are_offered_to_nobody_again() -> None:
    books = made()
    books.asked(1, "a", "x", 40)
    books.filled(1, 40)
    books.asked(2, "b", "x", 40)
    assert books.unfit(2, "odd") == []
    assert (books.tenants, books.asked(3, "c", "x", 40)) == ([], [TurnAway(3, "odd")])
    assert books.gone(3) == []
    assert books.gone(1) == [DropMaster("x")]
    assert books.asked(4, "d", "x", 40) == [TurnAway(4, "odd")]


def test_who_waits_for_weights_that_cannot_be_kept_is_turned_away() -> None:
    books = made()
    books.asked(1, "a", "x", 40)
    books.asked(2, "b", "x", 40)
    assert books.unfit(1, "odd") == [TurnAway(2, "odd"), DropMaster("x")]
    assert books.gone(2) == []


class Keeping(RuleBasedStateMachine):
    """Random engines that come, fill masters and end, against the keeper's books. The machine keeps
    what the books answered to each engine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.books = made()
        self.number = 0
        self.wants: dict[int, str] = {}
        """Identity of each live engine that was not turned away."""
        self.has: set[int] = set()
        self.fills: dict[str, int] = {}
        self.files: set[str] = set()

    def note(self, deeds: Iterable[KeeperDeed]) -> None:
        for deed in deeds:
            match deed:
                case GiveMaster(member, identity):
                    assert identity in self.files and identity not in self.fills
                    self.has.add(member)
                case LetFill(member, identity):
                    assert identity not in self.files
                    self.files.add(identity)
                    self.fills[identity] = member
                case TurnAway(member, _):
                    self.wants.pop(member)
                case DropMaster(identity):
                    self.files.remove(identity)
                    self.fills.pop(identity, None)
                    users = {m for m in self.has if self.wants.get(m) == identity}
                    assert not users

    @rule(identity=st.sampled_from("wxyz"), tenant=st.sampled_from("abc"))
    def asks(self, identity: str, tenant: str) -> None:
        self.number += 1
        self.wants[self.number] = identity
        self.note(self.books.asked(self.number, tenant, identity, 30 + ord(identity) % 7 * 10))

    @precondition(lambda self: self.fills)
    @rule(data=st.data())
    def fills_it(self, data: st.DataObject) -> None:
        identity = data.draw(st.sampled_from(sorted(self.fills)))
        member = self.fills.pop(identity)
        self.has.add(member)
        self.note(self.books.filled(member, 30 + ord(identity) % 7 * 10))

    @precondition(lambda self: self.wants)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.wants)))
        del self.wants[member]
        self.has.discard(member)
        self.note(self.books.gone(member))

    @rule(tenant=st.sampled_from("abc"))
    def is_forgotten(self, tenant: str) -> None:
        self.note(self.books.forgets(tenant))

    @rule(tenants=st.sets(st.sampled_from("abc")))
    def are_kept_for(self, tenants: set[str]) -> None:
        self.note(self.books.keeps_for(tenants))
        assert tenants >= set(self.books.tenants)

    @precondition(lambda self: self.has)
    @rule(data=st.data())
    def finds_it_unfit(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.has)))
        self.has.discard(member)
        del self.wants[member]
        self.note(self.books.unfit(member, "odd"))

    @invariant()
    def files_are_those_of_the_books(self) -> None:
        assert self.files == self.books.masters.keys()

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        waiting = self.wants.keys() - self.has - set(self.fills.values())
        assert all(self.wants[member] in self.fills for member in waiting)

    @invariant()
    def bounds_hold(self) -> None:
        assert self.books.idle_bytes <= IDLE
        assert not self.books.idle_bytes or self.books.idle_bytes + self.books.used_bytes <= MOST

    @invariant()
    def a_tenant_has_one_master(self) -> None:
        assert len(self.books.tenants) == len(set(self.books.tenants))


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
