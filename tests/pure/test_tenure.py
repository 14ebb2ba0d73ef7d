"""Lease and epoch of a device server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import msgspec
import pytest

from mirage.errors import CommandFailed
from mirage.machines import epoch
from mirage.machines.claim import Claimant, ControllerClaim
from mirage.machines.epoch import (
    claimed_epoch,
    free_epoch,
    give_up,
    keep_claim,
    newest_claim,
    this_claimant,
)
from mirage.machines.seam import Machines, StaleEpoch
from mirage.machines.tenure import Tenure
from mirage.processes.marks import ProcessMark

pytestmark = pytest.mark.pure


def test_older_controllers_are_refused_and_the_lease_is_never_cut_short() -> None:
    tenure = Tenure(2, 10.0, now=0.0)
    with pytest.raises(StaleEpoch):
        tenure.obeys(1)
    tenure.obeys(2)
    tenure.obeys(4)
    with pytest.raises(StaleEpoch):
        tenure.obeys(3)
    tenure.renew(5.0, now=1.0)
    assert tenure.left_s(1.0) == 9.0
    tenure.renew(20.0, now=1.0)
    assert tenure.left_s(1.0) == 20.0
    assert tenure.left_s(30.0) == 0.0


class FewFacts:
    """In-memory store of a cluster's facts, in place of that of the cluster."""

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        if absent and key in self.known:
            return False
        self.known[key] = value
        return True

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self.known.items() if key.startswith(prefix)}


def test_an_epoch_is_the_next_one_and_beyond_what_servers_know_of_a_lost_head() -> None:
    machines = cast(Machines, FewFacts())
    epochs = [0]
    for pid, beyond in ((1, 0), (2, 0), (3, 7), (4, 0)):
        epochs.append(asyncio.run(claimed_epoch(machines, controller(pid), epochs[-1], beyond)))
    assert epochs == [0, 1, 2, 8, 9]


def test_two_that_begin_at_once_are_not_both_the_controller() -> None:
    machines = cast(Machines, FewFacts())
    assert asyncio.run(claimed_epoch(machines, controller(1), 0)) == 1
    words = "is process 1 on m1, since 1970-01-01 00:00:05 UTC: run one only.* --take-over"
    with pytest.raises(CommandFailed, match=words):
        asyncio.run(claimed_epoch(machines, controller(2), 0))
    assert asyncio.run(claimed_epoch(machines, controller(2), 1)) == 2


def test_a_claim_is_renewed_until_a_later_one_and_its_end_is_noted() -> None:
    async def run() -> None:
        machines = cast(Machines, FewFacts())
        await claimed_epoch(machines, controller(1), 0)
        keeping = asyncio.ensure_future(keep_claim(machines, 1, controller(1)))
        await asyncio.sleep(0)
        claim = (await newest_claim(machines)).claim
        assert claim is not None and claim.renewals == 1 and not claim.ended
        keeping.cancel()
        await claimed_epoch(machines, controller(2), 1)
        with pytest.raises(StaleEpoch):
            await keep_claim(machines, 1, controller(1))
        await give_up(machines, 2, controller(2))
        claim = (await newest_claim(machines)).claim
        assert claim is not None and claim.ended and claim.by == controller(2)

    asyncio.run(run())


class Renewed(FewFacts):
    """The same store, in which the controller renews its claim between any two looks."""

    def __init__(self, by: Claimant) -> None:
        super().__init__()
        self._by, self._renewals = by, 0

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        self._renewals += 1
        return {"epoch:3": msgspec.json.encode(ControllerClaim(self._by, self._renewals))}


def test_who_renews_its_claim_is_followed_only_if_it_is_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epoch, "LOOK_S", 0.0)
    own, lines = this_claimant("m1"), list[str]()

    def free(by: Claimant, *, take_over: bool = False) -> int:
        machines = cast(Machines, Renewed(by))
        return asyncio.run(free_epoch(machines, own, take_over=take_over, say=lines.append))

    with pytest.raises(CommandFailed, match=r"is process 7 on m2, since .* --take-over"):
        free(Claimant("m2", own.place, ProcessMark(7, 7), 5.0))
    assert len(lines) == 1 and "process 7 on m2" in lines[0] and "15 s" in lines[0]
    assert free(Claimant("m2", own.place, ProcessMark(7, 7), 5.0), take_over=True) == 3
    with pytest.raises(CommandFailed, match="on m1, since"):
        free(own)
    gone = ProcessMark(own.mark.pid, own.mark.start - 1)
    assert free(msgspec.structs.replace(own, mark=gone)) == 3, "its process has ended here"
    assert free(msgspec.structs.replace(own, place="another boot")) == 3


def controller(pid: int) -> Claimant:
    return Claimant("m1", "boot", ProcessMark(pid, pid), 5.0)
