"""What an engine remembers of requests that load, and for how long."""

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
    manager.seek("gone", [KEY])
    places = manager.prepare_load([KEY], context).places
    manager.admitted("gone", 32)
    manager.on_request_finished(context)
    if fails:
        manager.load_failed("gone")
    else:
        manager.loaded("gone", places)
    manager.complete_load([KEY], context)
    remembered = (manager._seeking, manager._arrived, manager._failed, manager._put_off)
    assert not any(remembered)
    pool.close()
