"""`mirage doctor` on a vLLM that lacks something which our engine extends."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from mirage.doctor import engine
from mirage.doctor.finding import State

pytestmark = pytest.mark.engine
MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"


def test_all_is_there() -> None:
    states = {finding.what: finding.state for finding in engine.findings()}
    assert all(states[what] is State.WORKS for what in ("hooks", "CUDA graphs", "torch.compile"))


def test_what_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.HOOKS, MANAGER, ("watermark_blocks", "watermark_bricks"))
    monkeypatch.setitem(engine.GRAPHS, "vllm.v1.graph_atlas:Atlas", ("dispatch",))
    monkeypatch.setitem(engine.COMPILER, "vllm.compilation.wrapper:Wrapper", ())
    found = {finding.what: finding for finding in engine.findings()}
    assert found["hooks"].state is State.MISSING
    assert found["hooks"].found == "not found: KVCacheManager.watermark_bricks"
    assert found["CUDA graphs"].state is State.LIMITED, "steps run eagerly without"
    assert found["CUDA graphs"].found == "not found: vllm.v1.graph_atlas:Atlas"
    assert found["torch.compile"].state is State.MISSING, "our worker imports it"
