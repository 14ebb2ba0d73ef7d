"""Block tables of vLLM's model runners; the kernel of the second one is done in Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.worker.gpu import block_table

from mirage.engine.blocktables import forget, letting_go, zero_tails

pytestmark = pytest.mark.engine
REQUESTS, BLOCKS = 3, 6


class Kernel:
    """Replacement of `_gather_block_tables_kernel` that works on tensors instead of addresses."""

    def __init__(self, tables: Any) -> None:
        self.tables = tables

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def run(mapping: torch.Tensor, *_: Any, **__: Any) -> None:
            for group in range(grid[0]):
                for row in range(grid[1]):
                    target = self.tables.input_block_tables[group][row]
                    if row >= len(mapping):
                        target.zero_()
                        continue
                    request = int(mapping[row])
                    count = int(self.tables.num_blocks.gpu[group, request])
                    target[:count] = self.tables.block_tables[group].gpu[request, :count]

        return run


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's block tables with one group, in ordinary memory."""
    made = block_table.BlockTables.__new__(block_table.BlockTables)
    made.num_kv_cache_groups = 1
    ids = torch.arange(1, 1 + REQUESTS * BLOCKS, dtype=torch.int32).view(REQUESTS, BLOCKS)
    made.block_tables = [SimpleNamespace(gpu=ids)]
    made.input_block_tables = [torch.zeros_like(ids)]
    made.num_blocks = SimpleNamespace(gpu=torch.tensor([[6, 2, 4]]))
    made.block_table_ptrs = made.input_block_table_ptrs = made.block_table_strides = None
    # Of 0.33: the kernel leaves out what fell behind a window.
    made.has_sliding_window_groups, made._num_dirty_rows = False, 0
    made.sliding_window_reach = made.block_sizes_tensor = None
    monkeypatch.setattr(block_table, "_gather_block_tables_kernel", Kernel(made))
    return made


def rows(tables: Any, *requests: int, padded: int = REQUESTS) -> list[list[int]]:
    (found,) = tables.gather_block_tables(torch.tensor(requests), padded)
    return found.tolist()


def test_vllms_own_rows_keep_what_a_longer_request_left(tables: Any) -> None:
    assert rows(tables, 0)[0] == [1, 2, 3, 4, 5, 6]
    assert rows(tables, 1)[0] == [7, 8, 3, 4, 5, 6], "or nothing need be done"


def test_what_a_newer_vllm_passes_reaches_it() -> None:
    class Newer:
        input_block_tables = (torch.ones(2, 3),)

        def gather_block_tables(
            self, idx_mapping: Any, num_reqs_padded: int, out: Any = None, *more: Any, **named: Any
        ) -> Any:
            self.got = (idx_mapping, num_reqs_padded, out, more, named)
            return self.input_block_tables

    tables, own = Newer(), (torch.ones(2, 3),)
    assert zero_tails(SimpleNamespace(block_tables=tables))
    tables.gather_block_tables("requests", num_reqs_padded=1, num_computed_tokens="tokens")
    assert tables.got == ("requests", 1, None, (), {"num_computed_tokens": "tokens"})
    assert tables.input_block_tables[0].tolist() == [[0, 0, 0], [1, 1, 1]]
    tables.gather_block_tables("requests", 1, own, "addresses", num_computed_tokens="tokens")
    assert tables.got[2:] == (own, ("addresses",), {"num_computed_tokens": "tokens"})
    assert own[0].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_ours_end_in_the_null_block(tables: Any) -> None:
    assert zero_tails(SimpleNamespace(block_tables=tables))
    assert rows(tables, 0, 2) == [[1, 2, 3, 4, 5, 6], [13, 14, 15, 16, 0, 0], [0] * 6]
    assert rows(tables, 1, 2, padded=2) == [[7, 8, 0, 0, 0, 0], [13, 14, 15, 16, 0, 0]]


def test_buffers_of_a_drafter_too(tables: Any) -> None:
    zero_tails(SimpleNamespace(block_tables=tables))
    own = torch.full((REQUESTS, BLOCKS), 9, dtype=torch.int32)
    tables.gather_block_tables(torch.tensor([1]), 1, (own,), torch.zeros(1))
    assert own[0].tolist() == [0] * BLOCKS and own[1].tolist() == [9] * BLOCKS


def test_the_first_runner_clears_its_rows_itself() -> None:
    assert not zero_tails(SimpleNamespace(input_batch=None))


def test_names_of_blocks_that_were_left_become_the_null_block(tables: Any) -> None:
    """Blocks 2 and 9 were left behind and have lost their memory. In the tables of requests that
    still have their numbers they become the null block 0.
    """
    config = SimpleNamespace(num_blocks=32)
    forget(SimpleNamespace(block_tables=tables, kv_cache_config=config), [0], {9, 2, 31})
    zero_tails(SimpleNamespace(block_tables=tables))
    tables.num_blocks.gpu[0, 1] = 4
    assert rows(tables, 1, 0)[:2] == [[7, 8, 0, 10, 0, 0], [1, 0, 3, 4, 5, 6]]


def test_the_first_runners_rows_and_what_they_are_written_from() -> None:
    waited = []
    names = np.array([[5, 6, 7], [8, 9, 0], [6, 6, 6]], np.int32)
    table = SimpleNamespace(block_table=SimpleNamespace(np=names))
    other = SimpleNamespace(block_table=SimpleNamespace(np=names.copy()))
    runner = SimpleNamespace(
        prepare_inputs_event=SimpleNamespace(synchronize=lambda: waited.append(True)),
        input_batch=SimpleNamespace(
            num_reqs=2, block_table=SimpleNamespace(block_tables=[other, table])
        ),
        requests={"a": SimpleNamespace(block_ids=([6], [5, 6, 7]))},
    )
    forget(runner, [1], set())
    forget(runner, [], {6})
    assert not waited, "nothing to do"
    forget(runner, [1], {6, 8})
    assert waited, "an earlier step's copy to the device may be under way"
    assert names.tolist() == [[5, 0, 7], [0, 9, 0], [6, 6, 6]]
    assert other.block_table.np[0].tolist() == [5, 6, 7], "layers that see everything"
    assert runner.requests["a"].block_ids == ([6], [5, 0, 7])


def test_who_lets_go_of_blocks() -> None:
    common: dict[str, Any] = {
        "block_size": 32,
        "num_kv_heads": 1,
        "head_size": 32,
        "dtype": torch.float32,
    }
    full = FullAttentionSpec(**common)
    window = SlidingWindowSpec(**common, sliding_window=64)
    local = ChunkedLocalAttentionSpec(**common, attention_chunk_size=64)
    both = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"a": full, "b": window})
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in (full, window, local, both)]
    assert letting_go(SimpleNamespace(kv_cache_groups=groups)) == [1, 2, 3]
