"""FlashInfer's wrappers while layers stream: one for all sizes of a step, in vLLM's own builder.

FlashInfer itself needs a GPU's toolkit to be imported: what vLLM takes of it by name is a stub, of
which the making of wrappers is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("vllm")

import torch
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

from mirage.engine.graphs import gate

pytestmark = pytest.mark.engine
MOST, PAGE, LENGTH = 64, 16, 40
CAPTURED = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of whole steps' graphs."""


class Wrapper:
    """Stand-in for FlashInfer's wrapper of a kernel, with its own workspaces."""

    made: ClassVar[list[Wrapper]] = []

    def __init__(self, workspace: Any, layout: Any, use_cuda_graph: bool = False, **_: Any) -> None:
        self.for_graphs = use_cuda_graph
        Wrapper.made.append(self)


class Stub(ModuleType):
    """Stand-in for a module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Wrapper if name == "BatchDecodeWithPagedKVCacheWrapper" else type(name, (), {})


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    name = "vllm.v1.attention.backends.flashinfer"
    for stub in ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils"):
        monkeypatch.setitem(sys.modules, stub, Stub(stub))
    monkeypatch.delitem(sys.modules, name, raising=False)
    import importlib

    module = importlib.import_module(name)
    nothing = {"get_seq_lens": 0, "fast_plan_decode": 0, "use_trtllm_attention": False}
    for function, answer in nothing.items():
        monkeypatch.setattr(module, function, lambda *_, _answer=answer, **__: _answer)
    monkeypatch.setattr(module, "get_flashinfer_layout_string", str)
    monkeypatch.setattr(module, "PIN_MEMORY", False)
    monkeypatch.setattr(Wrapper, "made", [])
    yield module
    sys.modules.pop(name, None)


def builder_of(module: Any) -> Any:
    """vLLM's builder of attention metadata for FlashInfer, with the fields that its
    `build` reads.
    """
    cls = module.FlashInferMetadataBuilder

    class Builder(cls):  # type: ignore[misc, valid-type]
        kv_cache_layout = "NHD"

        def _compute_flashinfer_kv_metadata(self, *_: Any) -> torch.Tensor:
            return torch.zeros(1, dtype=torch.int32)

        def _get_workspace_buffer(self) -> None:
            """The shared workspace, in torch's memory."""

    made: Any = Builder.__new__(Builder)
    either = dict.fromkeys(
        (
            *("use_xqa", "use_trtllm_gen_varlen_decode", "use_dcp", "has_sinks", "nvfp4_trtllm"),
            "use_fa2_native_decode",
        ),
        False,
    )
    unused = dict.fromkeys(
        ("sm_scale", "window_left", "logits_soft_cap", "kv_cache_dtype", "decode_fixed_split_size"),
        1,
    )
    indptr = SimpleNamespace(
        cpu=torch.zeros(MOST + 1, dtype=torch.int32), gpu=torch.zeros(MOST + 1, dtype=torch.int32)
    )
    vars(made).update(
        either
        | unused
        | {
            "reorder_batch_threshold": 1,
            "page_size": PAGE,
            "attention_config": SimpleNamespace(use_trtllm_attention=False),
            "model_config": SimpleNamespace(dtype=torch.bfloat16),
            "num_qo_heads": 4,
            "num_kv_heads": 4,
            "head_dim": 64,
            "dcp_world_size": 1,
            "cache_dtype": "auto",
            "q_data_type_prefill": torch.bfloat16,
            "q_data_type_decode": torch.bfloat16,
            "use_trtllm_decode_attention": False,
            "global_hyperparameters": SimpleNamespace(
                has_same_window_lefts=True, has_same_all_params=True
            ),
            "_num_speculative_tokens": 0,
            "disable_split_kv": False,
            "paged_kv_indptr": indptr,
            "paged_kv_last_page_len": indptr,
            "paged_kv_indices": torch.zeros(1, dtype=torch.int32),
            "enable_cuda_graph": True,
            "_decode_wrappers_cudagraph": {},
            "_decode_cudagraph_max_bs": MOST,
            "_decode_wrapper": None,
        }
    )
    return made


def batch(requests: int) -> CommonAttentionMetadata:
    """Metadata of a step in which `requests` requests decode a token each."""
    lengths = torch.full((requests,), LENGTH, dtype=torch.int32)
    starts = torch.arange(requests + 1, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=requests,
        num_actual_tokens=requests,
        max_query_len=1,
        max_seq_len=LENGTH,
        block_table_tensor=torch.zeros((requests, 3), dtype=torch.int32),
        slot_mapping=torch.zeros(requests, dtype=torch.int64),
        seq_lens_cpu_upper_bound=lengths,
    )


def manager() -> CudaGraphManager:
    """CUDA graphs of the second model runner: whole ones at the sizes `CAPTURED`, and others in
    pieces.
    """
    made = CudaGraphManager.__new__(CudaGraphManager)
    made._lora_dispatch_map, made._max_lora_case = {}, 0
    captured = {
        size: [
            BatchExecutionDescriptor(cg_mode=mode, num_tokens=size, num_reqs=requests)
            for mode, requests in ((CUDAGraphMode.FULL, size), (CUDAGraphMode.PIECEWISE, None))
        ]
        for size in CAPTURED
    }
    padded = {n: next(size for size in CAPTURED if size >= n) for n in range(1, MOST + 1)}
    made._candidates = {(n, 0): captured[size] for n, size in padded.items()}
    graphs = [graph for candidates in captured.values() for graph in candidates]
    made._graphs_captured = True
    made.graphs = {graph: object() for graph in graphs}  # type: ignore[misc]
    made.breakable_cg_runner = None
    return made


class Steps:
    """Steps of a model runner: each chooses a graph first, and then builds the metadata of
    attention.
    """

    def __init__(self, builder: Any) -> None:
        self.streaming, self.builder = False, builder
        group = SimpleNamespace(metadata_builders=[builder])
        other = SimpleNamespace(metadata_builders=[SimpleNamespace()])
        self.runner: Any = SimpleNamespace(
            cudagraph_manager=manager(), attn_groups=[[group], [other]]
        )
        gate(self.runner, lambda: self.streaming, pieces=True)

    def decode(self, requests: int) -> Any:
        chosen = self.runner.cudagraph_manager.dispatch(requests, requests, 1, 0)
        whole = chosen.cg_mode is CUDAGraphMode.FULL
        # A whole graph is padded to its size; steps in pieces are not, for attention.
        size = chosen.num_reqs if whole else requests
        assert not (whole and self.streaming)
        return self.builder.build(0, batch(size)).decode.wrapper


def test_while_layers_stream_there_is_one_wrapper_for_all_sizes(backend: Any) -> None:
    steps = Steps(builder_of(backend))
    steps.streaming = True
    wrappers = {id(steps.decode(requests)) for requests in range(1, MOST + 1)}
    assert len(wrappers) == len(Wrapper.made) == 1 and not Wrapper.made[0].for_graphs


def test_what_graphs_were_captured_with_is_there_when_nothing_streams_again(backend: Any) -> None:
    steps = Steps(builder_of(backend))
    captured = {size: steps.decode(size) for size in CAPTURED}
    assert len(Wrapper.made) == len(CAPTURED) and all(one.for_graphs for one in Wrapper.made)
    for streaming in (True, False, True, False):
        steps.streaming = streaming
        for requests in range(1, MOST + 1):
            wrapper = steps.decode(requests)
            assert (wrapper in captured.values()) is not streaming
    assert len(Wrapper.made) == len(CAPTURED) + 1
    assert all(steps.decode(size) is wrapper for size, wrapper in captured.items())


def test_the_control_a_builder_that_nobody_tells_makes_one_for_each_size(backend: Any) -> None:
    steps = Steps(builder_of(backend))
    steps.streaming = True
    for requests in range(1, MOST + 1):
        steps.builder.build(0, batch(requests))
    assert len(Wrapper.made) == MOST
