"""Claim of a cluster's controller: it holds while it is renewed, and is free after its bound."""

from __future__ import annotations

import pytest

from mirage.machines.claim import SILENT_S, Claimant, ClaimSight, ClaimState, ControllerClaim
from mirage.processes.marks import ProcessMark

pytestmark = pytest.mark.pure

BY = Claimant("m1", "boot", ProcessMark(7, 70), 1.0)
OTHER = Claimant("m1", "boot", ProcessMark(8, 80), 2.0)


def test_a_claim_that_is_renewed_is_held_and_a_silent_one_is_free_after_its_bound() -> None:
    sight = ClaimSight(100.0)
    first = ControllerClaim(BY, renewals=3)
    assert sight.sees(4, first, 100.0) is ClaimState.UNKNOWN
    assert sight.sees(4, first, 100.0 + SILENT_S - 0.1) is ClaimState.UNKNOWN
    assert sight.sees(4, ControllerClaim(BY, renewals=4), 114.9) is ClaimState.HELD
    assert sight.sees(4, first, 100.0 + SILENT_S) is ClaimState.FREE


def test_a_later_controller_holds_the_claim() -> None:
    sight = ClaimSight(0.0)
    assert sight.sees(4, ControllerClaim(BY), 0.0) is ClaimState.UNKNOWN
    assert sight.sees(5, ControllerClaim(OTHER), SILENT_S + 1) is ClaimState.HELD


@pytest.mark.parametrize(
    ("claim", "dead"),
    [(None, False), (ControllerClaim(BY, ended=True), False), (ControllerClaim(BY), True)],
)
def test_who_has_ended_holds_nothing(claim: ControllerClaim | None, dead: bool) -> None:
    assert ClaimSight(0.0).sees(4, claim, 0.0, is_dead=dead) is ClaimState.FREE
