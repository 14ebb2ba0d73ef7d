"""vLLM's second model runner under our GPU worker, as on a GPU, with tensors on the CPU.

Triton's kernels run in its interpreter. Parameters and KV cache are in memory of the stand-in for
the GPU's driver, and `second_graphs` captures and replays graphs. `second_stubs` has all that is
not vLLM's own. Each operation is done when it is issued, so errors in the order of streams are not
seen.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from children import must, spawn, spawn_anew
from second_run import BACK, BASE, GIVE, GROW, LAYERS, SHRUNK, TOKENS, UNIVERSE
from second_stubs import ENVIRONMENT

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.one_of("graphs")]
PIECES = LAYERS + 1
"""Graphs of a step in pieces: before, between and after attentions."""
EXCEPTION = 1
SEGMENTATION_FAULT = -11
KERNELS = {
    "_apply_write_kernel",
    "_gather_block_tables_kernel",
    "_compute_slot_mappings_kernel",
    "_prepare_prefill_inputs_kernel",
    "_combine_sampled_and_draft_tokens_kernel",
    "_post_update_kernel",
    "reshape_and_cache_kernel_flash",
    "kernel_unified_attention",
}
"""Some of Triton's that vLLM's second runner and TRITON_ATTN are made of."""

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Results of the first runner, and of each mode that a selected test needs."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params["mode"] for item in items if hasattr(item, "callspec")}
    folder = tmp_path_factory.mktemp("second")
    must(spawn("second_run.py", folder, folder, "first"))
    modes = sorted(asked | {"second"})
    must(spawn_anew("second_run.py", folder, folder, *modes, environment=ENVIRONMENT))
    return {mode: json.loads((folder / f"{mode}.json").read_text()) for mode in ["first", *modes]}


@pytest.mark.slow
def test_tokens_are_those_of_the_first_runner(found: Found) -> None:
    assert found["first"]["runner"] == "vllm.v1.worker.cpu_model_runner"
    assert found["second"]["runner"] == "vllm.v1.worker.gpu.model_runner"
    assert found["second"]["tokens"] == found["first"]["tokens"]
    assert set(found["second"]["kernels"]) >= KERNELS


@pytest.mark.slow
def test_memory_moved_between_the_steps(found: Found) -> None:
    second = found["second"]
    before, grown, away, back = (second["seen"][step] for step in (GROW - 1, GROW, GIVE, BACK))
    pages = (UNIVERSE - BASE) * second["extent_bytes"]
    assert (before["extents"], grown["extents"]) == (BASE, UNIVERSE)
    assert grown["device"] - before["device"] == pages, "memory came behind the new blocks"
    assert second["seen"][-1]["used"] > BASE, "and they were used"
    assert (away["layers_remapped"], back["layers_remapped"]) == (1, 0)
    assert grown["device"] - away["device"] == second["layer_bytes"]
    assert back["device"] == grown["device"]
    assert away["streamed"] < second["seen"][GIVE + 1]["streamed"] < back["streamed"]
    last = second["seen"][-1]
    assert back["streamed"] == last["streamed"], "nothing streams any more"
    assert last["extents"] == SHRUNK
    assert back["device"] - last["device"] == (UNIVERSE - SHRUNK) * second["extent_bytes"]


@pytest.mark.slow
def test_whole_graphs_are_replayed_while_no_layer_streams_and_pieces_else(found: Found) -> None:
    replayed = [seen["replayed"] for seen in found["second"]["seen"]]
    each = [after - before for before, after in pairwise(replayed)]
    steps = range(TOKENS)  # before the first there was no graph; it computes prompts
    streamed = range(GIVE, BACK + 1)  # the layer arrives in the first step after it came back
    assert each == [0, *(PIECES if step in streamed else 1 for step in steps[1:])]


@pytest.mark.slow
def test_the_warm_up_ran_steps_over_the_blocks_that_have_memory(found: Found) -> None:
    """The warm-up ran a step of prompts, three decode steps and those of captures, and used only
    blocks with memory.
    """
    warm = found["second"]["warm"]
    assert warm["_prepare_prefill_inputs_kernel"] == 1 and warm["_gather_block_tables_kernel"] == 4
    assert warm["kernel_unified_attention"] >= 5 * LAYERS


@pytest.mark.rare
@pytest.mark.parametrize("mode", ["uncaptured"])
def test_a_capture_that_fails_leaves_eager_steps_and_the_tokens(mode: str, found: Found) -> None:
    assert found[mode]["tokens"] == found["first"]["tokens"]
    assert found[mode]["seen"][-1]["streamed"] > 0 == found[mode]["seen"][-1]["replayed"]


@pytest.mark.rare
@pytest.mark.parametrize("mode", ["unawaited", "unloaded", "ungated"])
def test_a_layer_that_is_not_there_gives_other_tokens(mode: str, found: Found) -> None:
    """Control: a step does not wait for a layer, the layer is not loaded, or a graph without waits
    is replayed. Tokens differ from the moment on at which layers are given away.
    """
    said, right = (found[one]["tokens"] for one in (mode, "second"))
    assert said != right
    assert [tokens[:GIVE] for tokens in said] == [tokens[:GIVE] for tokens in right]


@pytest.mark.rare
@pytest.mark.parametrize(
    ("mode", "status"), [("ungrown", EXCEPTION), ("unbounded", SEGMENTATION_FAULT)]
)
def test_a_kv_block_without_memory_ends_the_engine(mode: str, status: int, found: Found) -> None:
    """Control: the warm-up uses blocks without memory, or KV memory grows without being mapped. The
    process ends with `status`.
    """
    assert found[mode] == {"exitcode": status}
