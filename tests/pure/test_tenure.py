"""Lease and epoch of a device server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from mirage.machines.epoch import claimed_epoch
from mirage.machines.seam import Machines, StaleEpoch
from mirage.machines.tenure import Tenure

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
    """Facts of a cluster."""

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        return self.known.setdefault(key, value) is value or not absent

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self.known.items() if key.startswith(prefix)}


def test_an_epoch_is_the_next_one_and_beyond_what_servers_know_of_a_lost_head() -> None:
    machines: Any = FewFacts()
    epochs = [
        asyncio.run(claimed_epoch(cast(Machines, machines), who, beyond))
        for who, beyond in (("one", 0), ("two", 0), ("three", 7), ("four", 0))
    ]
    assert epochs == [1, 2, 8, 9]
