"""Bit-identity: random remapping in the middle of requests changes no token and no logprob."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn
from tiny import FAMILIES, make_model

pytestmark = pytest.mark.engine


ONE, TWO = "llama", ("opt", "llama")
ALIKE = ("qwen2", "qwen3", "qwen3moe")
AT_ONCE = 2
"""Modes, each in a process of its own, on one core."""

Generated = dict[str, Future[dict[str, Any]]]


def left_to_slow(name: str) -> Any:
    """Parameter for a mode or family that runs only with the slow tests, because a similar one
    always runs.
    """
    return pytest.param(name, marks=pytest.mark.slow)


DRAWN = pytest.mark.drawn("family", together="identity")
"""One family, the same for all modes, of those that `make slow` has."""
EACH = [
    pytest.param(family, marks=(pytest.mark.slow, DRAWN) if family in ALIKE else ())
    for family in FAMILIES
]
PIECES = pytest.param("mirage-pieces", marks=(pytest.mark.slow, DRAWN))


@pytest.fixture(scope="module")
def generated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Generated]:
    """Futures of the results of each mode that selected tests need, by family."""
    asked: dict[str, set[str]] = {"plain": set()}
    for item in request.session.items:
        if item.path == request.path:
            chosen = item.callspec.params  # type: ignore[attr-defined]
            family = chosen.get("family", ONE)
            asked.setdefault(chosen["mode"], set()).add(family)
            asked["plain"].add(family)
    models = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        make_model(family, models)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            mode: pool.submit(_generate, models, mode, sorted(families))
            for mode, families in asked.items()
        }
        pool.shutdown(cancel_futures=True)


def _generate(models: Path, mode: str, families: list[str]) -> dict[str, Any]:
    out = models / f"{mode}.json"
    must(spawn("identity.py", models, out, mode, *families))
    return json.loads(out.read_text())


@pytest.fixture
def plain(generated: Generated) -> dict[str, Any]:
    return generated["plain"].result()


@pytest.mark.parametrize("mode", ["mirage", PIECES])
@pytest.mark.parametrize("family", EACH)
def test_tokens_and_logprobs_equal_plain_vllm(
    family: str, mode: str, plain: dict[str, Any], generated: Generated
) -> None:
    ours = generated[mode].result()[family]
    assert ours["rounds"] == plain[family]["rounds"]
    # The comparison means something only if a lot really moved, and prefixes really hit.
    assert len(ours["remapped_counts"]) >= 4 and max(ours["remapped_counts"]) >= 5
    assert {1, 2} <= set(ours["slot_counts"])
    assert ours["grown"] >= 3 and ours["shrunk"] >= 3
    assert ours["bytes_streamed"] > 0
    assert ours["hits"] == plain[family]["hits"] > 0
    assert ours["pieces"] == (mode == "mirage-pieces")
    assert 0 < ours["t_compute_s"] < 5, "T_c is measured"


@pytest.mark.parametrize("mode", [left_to_slow("cuda"), left_to_slow("cuda-pieces")])
@pytest.mark.parametrize("family", TWO)
def test_memory_of_the_gpus_driver_changes_no_output(
    family: str, mode: str, plain: dict[str, Any], generated: Generated
) -> None:
    pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")
    ours = generated[mode].result()[family]
    assert ours["rounds"] == plain[family]["rounds"]
    assert len(ours["remapped_counts"]) >= 4 and ours["grown"] >= 3 and ours["shrunk"] >= 3
    calls = ours["calls"]
    assert calls["cuMemMap"] > calls["cuMemCreate"] > 0 < calls["cuMemUnmap"]
    assert calls["cuMemcpyAsync"] > 100, "layers stream from host memory"
    assert calls["cuStreamWaitEvent"] > 100, "for which the stream that computes waits"
    assert calls["cuEventElapsedTime"] > 10 and 0 < ours["t_compute_s"] < 5, "T_c by its events"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["paced"])
def test_memory_that_moves_one_thing_a_step_changes_no_output(
    plain: dict[str, Any], generated: Generated, mode: str
) -> None:
    ours = generated[mode].result()[ONE]
    assert ours["rounds"] == plain[ONE]["rounds"]
    assert len(ours["remapped_counts"]) >= 4 and ours["grown"] >= 3 and ours["shrunk"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["slow", "slow-pieces"])
def test_a_slow_link_changes_no_output(
    generated: Generated, plain: dict[str, Any], mode: str
) -> None:
    slow = generated[mode].result()
    assert slow[ONE]["rounds"] == plain[ONE]["rounds"][:1]


@pytest.mark.parametrize("mode", ["nowait", left_to_slow("nowait-pieces")])
def test_without_waits_the_outputs_differ(
    generated: Generated, plain: dict[str, Any], mode: str
) -> None:
    broken = generated[mode].result()
    assert broken[ONE]["rounds"] != plain[ONE]["rounds"][:1]
