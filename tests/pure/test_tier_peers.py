"""Peers' memory by lease: the ledger's sums are right, best fit is best, a
revocation is told once.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mirage.tiers.peers.lease import Hints, Lease, StaleLease, StillPinned
from mirage.tiers.peers.peers import Peers
from tests.examples import examples

pytestmark = pytest.mark.pure


def lent(peers: Peers, nbytes: int, **hints: object) -> Lease:
    lease = peers.alloc(nbytes, Hints(**hints))
    assert lease is not None
    return lease


def test_the_smallest_hole_of_all_devices_is_taken() -> None:
    peers = Peers({"a": 10, "b": 6})
    first = lent(peers, 3, device="a")
    lent(peers, 4, device="a")
    peers.free(first)
    assert lent(peers, 3)[:3] == ("a", 0, 3)  # holes of 3, 3 and 6 bytes
    assert lent(peers, 5)[:3] == ("b", 0, 5)
    assert peers.alloc(4) is None
    assert peers.alloc(3, Hints(device="b")) is None


def test_a_revoked_lease_is_drained_invalidated_and_called_back() -> None:
    told: list[str] = []
    peers = Peers({"a": 10})

    def draining(lease: Lease) -> None:
        told.append("draining")
        assert peers.drains(lease)
        assert not peers.pin(lease)

    def gone(lease: Lease) -> None:
        told.append("gone")
        assert peers.state()["a"].held_bytes == 0
        with pytest.raises(StaleLease, match="it was freed or revoked"):
            peers.free(lease)

    peers.on_revoke("h", gone, draining)
    lease = lent(peers, 10, holder="h", backed=True)
    assert peers.pin(lease)
    peers.resize("a", 0)
    assert (told, peers.state()["a"].owed_bytes) == (["draining"], 10)
    with pytest.raises(StillPinned, match="1 copies are under way"):
        peers.free(lease)
    peers.unpin(lease)
    assert told == ["draining"]
    peers.saved(lease)
    assert told == ["draining", "gone"]
    assert peers.revocations == 1


def test_idle_leases_go_before_busy_ones_and_old_ones_before_young_ones() -> None:
    gone: list[int] = []
    peers = Peers({"a": 12})
    peers.on_revoke("h", lambda lease: gone.append(lease.offset))
    leases = [lent(peers, 4, holder="h") for _ in range(3)]
    peers.pin(leases[0])
    peers.resize("a", 8)
    assert gone == [4]
    peers.resize("a", 4)
    assert gone == [4, 8]


def test_a_callback_may_take_memory_elsewhere_and_revoke_more() -> None:
    peers = Peers({"a": 4, "b": 8, "c": 8})
    told: list[str] = []

    def gone(lease: Lease) -> None:
        told.append(f"{lease.device} begins")
        if lease.device == "a":
            lent(peers, 4, holder="h", device="c")
            peers.resize("b", 0)  # whose callback comes after this one
        told.append(f"{lease.device} ends")

    peers.on_revoke("h", gone)
    lent(peers, 4, holder="h", device="a")
    lent(peers, 4, holder="h", device="b")
    peers.resize("a", 2)
    assert told == ["a begins", "a ends", "b begins", "b ends"]
    assert [state.held_bytes for state in peers.state().values()] == [0, 0, 4]


def test_what_is_freed_within_a_callback_is_not_called_back() -> None:
    peers, told = Peers({"a": 8}), list[Lease]()

    def draining(lease: Lease) -> None:
        told.append(lease)
        if lease == one:
            peers.free(two)

    peers.on_revoke("h", told.append, draining)
    one, two = (lent(peers, 4, holder="h") for _ in range(2))
    peers.resize("a", 0)
    assert told == [one, one] and peers.revocations == 1


def test_who_ended_within_a_callback_hears_nothing_in_its_next_life() -> None:
    peers, told = Peers({"a": 4, "b": 4}), list[Lease]()

    def gone(lease: Lease) -> None:
        peers.resize("b", 0)  # of which "x" is to hear after this
        peers.ended("x")
        peers.on_revoke("x", told.append)

    peers.on_revoke("h", gone)
    peers.on_revoke("x", told.append)
    lent(peers, 4, holder="h", device="a")
    lent(peers, 4, holder="x", device="b")
    peers.resize("a", 0)
    assert told == []


def test_what_cannot_be_is_refused() -> None:
    peers = Peers({"a": 4})
    with pytest.raises(ValueError, match="no peer is named 'z': there is 'a'"):
        peers.resize("z", 0)
    with pytest.raises(ValueError, match="5 bytes for peer 'a': it has 4"):
        peers.resize("a", 5)
    with pytest.raises(ValueError, match="positive size"):
        peers.alloc(0)
    lease = lent(peers, 1)
    with pytest.raises(ValueError, match="not pinned"):
        peers.unpin(lease)


class Lending(RuleBasedStateMachine):
    """Random leases on two devices for two holders that may end at any moment; `held` are the
    leases that they really have.
    """

    leases = Bundle("leases")
    CAPACITY: ClassVar = {"a": 24, "b": 16}

    def __init__(self) -> None:
        super().__init__()
        self.peers = Peers(self.CAPACITY)
        self.budget = dict(self.CAPACITY)
        self.held: dict[Lease, Hints] = {}
        self.pins: dict[Lease, int] = {}
        self.draining: set[Lease] = set()
        self.saved: set[Lease] = set()
        for holder in ("x", "y"):
            self.register(holder)

    def register(self, holder: str) -> None:
        def draining(lease: Lease) -> None:
            assert self.held[lease].holder == holder
            assert lease not in self.draining
            self.draining.add(lease)

        def gone(lease: Lease) -> None:
            assert lease in self.draining  # told before, and once
            assert self.held[lease].holder == holder
            assert not self.pins.get(lease)
            assert lease in self.saved or not self.held[lease].backed
            self.forget(lease)

        self.peers.on_revoke(holder, gone, draining)

    def forget(self, lease: Lease) -> None:
        del self.held[lease]
        self.pins.pop(lease, None)
        self.draining.discard(lease)

    def free_runs(self, device: str) -> dict[int, int]:
        """Lengths in bytes of the free runs of a device, by offset, computed from `held`."""
        ends = sorted((le.offset, le.offset + le.nbytes) for le in self.held if le.device == device)
        points = [0, *(point for pair in ends for point in pair), self.CAPACITY[device]]
        pairs = list(zip(points[::2], points[1::2], strict=True))
        assert all(start <= end for start, end in pairs)  # no two share a byte
        return {start: end - start for start, end in pairs if end > start}

    def bytes_of(self, device: str) -> int:
        return sum(lease.nbytes for lease in self.held if lease.device == device)

    @rule(
        target=leases,
        nbytes=st.integers(1, 12),
        holder=st.sampled_from("xy"),
        device=st.sampled_from(["a", "b", None]),
        backed=st.booleans(),
    )
    def alloc(self, nbytes: int, holder: str, device: str | None, backed: bool) -> Lease | None:
        hints = Hints(holder, device, backed)
        fitting = [
            run
            for name in ([device] if device else self.CAPACITY)
            if self.bytes_of(name) + nbytes <= self.budget[name]
            for run in self.free_runs(name).values()
            if run >= nbytes
        ]
        before = {name: self.free_runs(name) for name in self.CAPACITY}
        lease = self.peers.alloc(nbytes, hints)
        assert (lease is None) == (not fitting)
        if lease is not None:
            assert before[lease.device][lease.offset] == min(fitting)
            self.held[lease] = hints
        return lease

    @rule(lease=leases)
    def pin(self, lease: Lease | None) -> None:
        if lease is not None:
            fine = lease in self.held and lease not in self.draining
            assert self.peers.pin(lease) == fine
            self.pins[lease] = self.pins.get(lease, 0) + 1 if fine else self.pins.get(lease, 0)

    @rule(lease=leases)
    def unpin(self, lease: Lease | None) -> None:
        if lease in self.held and self.pins.get(lease):
            self.pins[lease] -= 1
            self.peers.unpin(lease)

    @rule(lease=leases)
    def save(self, lease: Lease | None) -> None:
        if lease in self.held:
            self.saved.add(lease)
            self.peers.saved(lease)

    @rule(lease=consumes(leases))
    def free(self, lease: Lease | None) -> None:
        if lease is None:
            return
        if lease not in self.held:
            with pytest.raises(StaleLease):
                self.peers.free(lease)
        elif self.pins.get(lease):
            with pytest.raises(StillPinned):
                self.peers.free(lease)
        else:
            self.peers.free(lease)
            self.forget(lease)

    @rule(device=st.sampled_from("ab"), budget=st.integers(0, 24))
    def resize(self, device: str, budget: int) -> None:
        budget = min(budget, self.CAPACITY[device])
        self.budget[device] = budget
        self.peers.resize(device, budget)

    @rule(holder=st.sampled_from("xy"))
    def crash(self, holder: str) -> None:
        self.peers.ended(holder)
        for lease in [lease for lease, hints in self.held.items() if hints.holder == holder]:
            self.forget(lease)
        self.register(holder)

    @invariant()
    def the_ledger_is_the_truth(self) -> None:
        for name, state in self.peers.state().items():
            mine = [lease for lease in self.held if lease.device == name]
            assert (state.held_bytes, state.leases) == (self.bytes_of(name), len(mine))
            assert state.budget_bytes == self.budget[name]
            waiting = sum(lease.nbytes for lease in mine if lease in self.draining)
            assert state.held_bytes - waiting <= self.budget[name]
            assert state.owed_bytes == max(0, state.held_bytes - self.budget[name])
        runs = [run for name in self.CAPACITY for run in self.free_runs(name).values()]
        assert sorted(self.peers.sizes()) == sorted(runs)

    @invariant()
    def none_is_lost(self) -> None:
        """Check that each lease that is being returned still has a reason to stay."""
        for lease in self.draining:
            assert self.pins.get(lease) or (self.held[lease].backed and lease not in self.saved)


TestLending = Lending.TestCase
TestLending.settings = examples(150, stateful_step_count=40)
