"""An engine's records of requests that load KV blocks, and the time that they stay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from mirage.engine.tiers.counts import TierCounts
from mirage.engine.tiers.manager import TierManager
from mirage.engine.tiers.recent import Recent
from mirage.tiers.contract import Key, Member
from mirage.tiers.core import Core
from mirage.tiers.local import LocalPool
from mirage.tiers.patience import Patience

pytestmark = pytest.mark.engine

KEY = Key(b"one")


@pytest.fixture
def pool() -> LocalPool:
    pool = LocalPool(Core(1 << 20), Member("t", b"weights", 4096))
    assert pool.reserve([KEY])
    pool.commit([KEY])
    return pool


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_remembered_of_a_request_that_ended_while_it_loaded(
    pool: LocalPool, fails: bool
) -> None:
    manager = TierManager(pool, TierCounts(), Patience(), Recent())
    context: Any = SimpleNamespace(req_id="gone")
    manager.on_new_request(context)
    manager.seek("gone", [KEY])
    places = manager.prepare_load([KEY], context).places
    manager.admitted("gone", 32)
    manager.on_request_finished(context)
    if fails:
        manager.load_failed("gone")
    else:
        manager.loaded("gone", places)
    manager.complete_load([KEY], context)
    assert not manager._fetches
    pool.close()


def test_what_was_loaded_and_lost_before_it_started_is_not_counted(pool: LocalPool) -> None:
    manager = TierManager(pool, TierCounts(), Patience(), Recent())
    context: Any = SimpleNamespace(req_id="one")
    manager.on_new_request(context)
    manager.seek("one", [KEY])
    places = manager.prepare_load([KEY], context).places
    manager.admitted("one", 32)
    manager.loaded("one", places)
    manager.complete_load([KEY], context)
    # Its blocks are taken back. When it is reached again, the device still has them.
    manager.seek("one", [KEY])
    manager.admitted("one", 0)
    assert manager.arrived("one") == 0
    pool.close()
