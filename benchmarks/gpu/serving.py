"""vLLM itself with two models the size of OPT-13b, where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row, Skipped


def two_models(bench: Bench) -> Row:
    """Static, pooled and mirage on Azure's code trace."""
    bench.need_kernels()
    if find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")
    raise Skipped("run `mirage replay configs/gpu.yaml --trace FILE --policy static,pooled,mirage`")
