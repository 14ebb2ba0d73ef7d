"""Block tables of vLLM's second model runner, its kernel done in Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.worker.gpu import block_table

from mirage.engine.blocktables import zero_tails

pytestmark = pytest.mark.engine
REQUESTS, BLOCKS = 3, 6


class Kernel:
    """What `_gather_block_tables_kernel` does, over tensors instead of their addresses."""

    def __init__(self, tables: Any) -> None:
        self.tables = tables

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def run(mapping: torch.Tensor, _src: Any, out: Any, *more: Any, **_: Any) -> None:
            requests = more[-1]
            for group in range(grid[0]):
                for row in range(grid[1]):
                    target = self.tables.input_block_tables[group][row]
                    if row >= requests:
                        target.zero_()
                        continue
                    request = int(mapping[row])
                    count = int(self.tables.num_blocks.gpu[group, request])
                    target[:count] = self.tables.block_tables[group].gpu[request, :count]

        return run


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's, one group, without a GPU's buffers."""
    made = block_table.BlockTables.__new__(block_table.BlockTables)
    made.num_kv_cache_groups = 1
    ids = torch.arange(1, 1 + REQUESTS * BLOCKS, dtype=torch.int32).view(REQUESTS, BLOCKS)
    made.block_tables = [SimpleNamespace(gpu=ids)]
    made.input_block_tables = [torch.zeros_like(ids)]
    made.num_blocks = SimpleNamespace(gpu=torch.tensor([[6, 2, 4]]))
    made.block_table_ptrs = made.input_block_table_ptrs = made.block_table_strides = None
    monkeypatch.setattr(block_table, "_gather_block_tables_kernel", Kernel(made))
    return made


def rows(tables: Any, *requests: int, padded: int = REQUESTS) -> list[list[int]]:
    (found,) = tables.gather_block_tables(torch.tensor(requests), padded)
    return found.tolist()


def test_vllms_own_rows_keep_what_a_longer_request_left(tables: Any) -> None:
    assert rows(tables, 0)[0] == [1, 2, 3, 4, 5, 6]
    assert rows(tables, 1)[0] == [7, 8, 3, 4, 5, 6], "or nothing need be done"


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
