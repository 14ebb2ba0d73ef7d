"""Loans between tenants, derived from the moves of a plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from test_controller import occupy, pair
from test_moves import WAYS, WHEN, caching
from test_planner import plan
from world import SHAPE

from mirage.config import Policy
from mirage.control.lent import Lending, lendings
from mirage.control.moves import FREE, Kind, Move, Place, Reason
from mirage.control.rules import Rules
from mirage.control.targets import share_extents
from mirage.control.tenant_state import TenantSnapshot
from tests.examples import examples

pytestmark = pytest.mark.pure

GROWTH, BEYOND, RUNNING = Reason.GROWTH, Reason.GROWTH_BEYOND, Reason.RUNNING


def move(source: Place, to: Place, nbytes: int, reason: Reason = BEYOND) -> Move:
    return Move(to.tenant or source.tenant, source, to, nbytes, reason)


def layers(name: str) -> Place:
    return Place(Kind.LAYERS, name)


def kv(name: str) -> Place:
    return Place(Kind.KV, name)


def test_layers_are_lent_as_the_moves_say() -> None:
    moves = [
        move(FREE, kv("code"), 40, RUNNING),
        move(layers("chat"), kv("code"), 9),
        move(layers("code"), kv("code"), 2),
        move(layers("chat"), FREE, 1),
    ]
    assert lendings(moves, {"code": 40, "chat": 0}) == [
        Lending("chat", "code", Kind.LAYERS, 9, BEYOND),
        Lending("code", "code", Kind.LAYERS, 2, BEYOND),
    ]


def test_what_came_back_is_not_lent() -> None:
    """Chat lends 8 bytes to code and 4 to mail. A recall takes 4 back from code's KV memory, and 2
    come back from free memory; 3 bytes of each loan remain.
    """
    moves = [
        move(layers("chat"), kv("code"), 8, RUNNING),
        move(layers("chat"), kv("mail"), 4, RUNNING),
        move(kv("code"), layers("chat"), 4, Reason.RECALL),
        move(FREE, layers("chat"), 2, Reason.RESTORE),
    ]
    assert [one[:4] for one in lendings(moves, {"chat": 0, "code": 99, "mail": 99})] == [
        ("chat", "code", Kind.LAYERS, 3),
        ("chat", "mail", Kind.LAYERS, 3),
    ]


def test_what_another_move_took_is_not_lent() -> None:
    """Chat lends 8 bytes to code, of which 6 then go to mail: code has 2 of them."""
    moves = [
        move(layers("chat"), kv("code"), 8, RUNNING),
        move(kv("code"), kv("mail"), 6, RUNNING),
    ]
    assert [one[:4] for one in lendings(moves, {"chat": 0, "code": 9, "mail": 9})] == [
        ("chat", "code", Kind.LAYERS, 2),
    ]


def test_idle_memory_is_lent_by_those_that_have_less_than_their_shares() -> None:
    moves = [
        move(FREE, kv("code"), 40, RUNNING),
        move(FREE, kv("code"), 20, BEYOND),
        move(FREE, kv("chat"), 10, RUNNING),
        move(FREE, kv("mail"), 25, RUNNING),
    ]
    shares = {"code": 30, "chat": 40, "mail": 35}
    assert lendings(moves, shares) == [
        Lending("chat", "code", Kind.KV, 22, BEYOND),
        Lending("mail", "code", Kind.KV, 7, BEYOND),
    ]
    assert lendings(moves, {"code": 30}) == [Lending("", "code", Kind.FREE, 30, BEYOND)]
    assert lendings(moves, {"code": 30, "chat": 20}) == [
        Lending("chat", "code", Kind.KV, 10, BEYOND),
        Lending("", "code", Kind.FREE, 20, BEYOND),
    ]
    assert lendings(moves, {"code": 99, "chat": 99}) == []


def test_layers_that_fill_a_share_leave_its_owner_a_lender() -> None:
    """Mail uses code's idle memory, and layers of chat serve code within its share. So chat lends
    to code, and code to mail.
    """
    moves = [
        move(FREE, kv("mail"), 30, RUNNING),
        move(layers("chat"), kv("code"), 10, GROWTH),
    ]
    assert lendings(moves, {"chat": 0, "code": 20, "mail": 20}) == [
        Lending("chat", "code", Kind.LAYERS, 10, GROWTH),
        Lending("code", "mail", Kind.KV, 10, RUNNING),
    ]


def test_the_controller_tells_what_its_plan_lends() -> None:
    """`a` has grown by ten extents: the controller tells of two loans of `b` to it, six idle KV
    extents and two layers.
    """
    world = pair(victims="mru")
    assert world.controller.lent(world.now) == []
    occupy(world, "a", 10, growing=10)
    for reason in (BEYOND, RUNNING):
        world.round()
        assert world.controller.lent(world.now) == [
            Lending("b", "a", Kind.LAYERS, 2 * SHAPE.layer_bytes, reason),
            Lending("b", "a", Kind.KV, 6 * SHAPE.extent_bytes, reason),
        ]
    assert world.controller.own_blocks("a") == 10 * SHAPE.extent_blocks - 1


@given(caching(), WAYS, WHEN)
@examples(300)
def test_nobody_lends_what_it_has_or_borrows_what_it_has_not(
    situation: tuple[list[TenantSnapshot], int], rules: Rules, when: Any
) -> None:
    tenants, device = situation
    made = plan(tenants, device, 0, Policy.MIRAGE, rules, **when)
    shares = {
        t.name: share_extents(t.tenant, t.shape, device) * t.shape.extent_bytes for t in tenants
    }
    lent = lendings(made.moves, shares)
    given_by, idle, had = Counter[str](), Counter[str](), Counter[str]()
    for one in lent:
        assert one.nbytes > 0
        had[one.borrower] += one.nbytes
        (idle if one.kind is Kind.KV else given_by)[one.lender] += one.nbytes
        assert one.lender != one.borrower or one.kind is not Kind.KV
    for t in tenants:
        target = made.targets[t.name]
        away = target.layers_remapped * t.shape.layer_bytes or given_by[t.name] * bool(
            target.experts
        )
        assert given_by[t.name] <= away
        assert idle[t.name] <= shares[t.name]
        assert had[t.name] <= target.kv_extents * t.shape.extent_bytes
