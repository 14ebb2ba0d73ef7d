"""`mirage doctor` on a vLLM that lacks a name which our engine uses, or has it in another form."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from mirage.doctor import engine
from mirage.doctor.finding import Finding, FindingState
from mirage.vllm_hooks import reached

pytestmark = [pytest.mark.engine, pytest.mark.slow]
MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
QUEUE = "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue"
DISPATCHER = "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher"


def found() -> dict[str, Finding]:
    return {finding.what: finding for finding in engine.findings()}


def test_all_is_there() -> None:
    assert all(
        found()[what].state is FindingState.WORKS for what in ("vLLM", "hooks", "CUDA graphs")
    )


def test_what_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reached.HOOKS, MANAGER, ("watermark_blocks", "watermark_bricks"))
    monkeypatch.setitem(reached.GRAPHS, "vllm.v1.graph_atlas:Atlas", ("dispatch(...)",))
    there = found()
    assert there["hooks"].state is FindingState.MISSING
    assert there["hooks"].found.startswith(f"{MANAGER}.watermark_bricks is not there (")
    assert there["CUDA graphs"].state is FindingState.LIMITED, "steps run eagerly without"
    assert there["CUDA graphs"].found.startswith("vllm.v1.graph_atlas:Atlas.dispatch is not there")


def test_what_takes_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reached.HOOKS, QUEUE, ("remove(block, later=...)",))
    monkeypatch.setitem(reached.GRAPHS, DISPATCHER, ("dispatch(..., forbidden_modes=...)",))
    there = found()
    assert there["hooks"].state is FindingState.MISSING
    assert f"{QUEUE}.remove(self, block): " in there["hooks"].found
    assert there["CUDA graphs"].state is FindingState.LIMITED
    assert "unexpected keyword argument 'forbidden_modes'" in there["CUDA graphs"].found
