"""Experts that are given away, and loaded when a step routes to them, change no
token or logprob.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn
from expert_run import make_mixture
from probing import answers, question

from mirage.tools.demo.tokenizer import save_tokenizer

pytestmark = pytest.mark.engine

FAMILIES = ("mixtral", pytest.param("qwen3moe", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _generated(models: Path, mode: str, family: str) -> dict[str, Any]:
    out = models / f"{mode}-{family}.json"
    if not out.exists():
        must(spawn("expert_run.py", models, out, mode, family))
    return json.loads(out.read_text())


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logprobs_equal_plain_vllm(models: Path, family: str) -> None:
    ours = _generated(models, "experts", family)
    assert ours["rounds"] == _generated(models, "plain", family)["rounds"]
    # The comparison means something only if a lot was away, missed and fetched, layers too.
    assert {0, 7} < set(ours["experts"]) and len(ours["experts"]) >= 4
    assert max(ours["remapped_counts"]) >= 1
    assert ours["loads"] > 100 and ours["hits"] > 0
    assert ours["load_s"] > 0
    routed = ours["routed"]
    assert len(routed) == 9 and routed[0] == 0 and routed == sorted(routed) and routed[-1] > 1


@pytest.mark.slow
def test_without_fetching_it_dies(models: Path) -> None:
    """Control: without loading, the process is killed by a segmentation fault when it computes with
    a cold expert, whose memory is not mapped.
    """
    out = models / "unfetched.json"
    assert spawn("expert_run.py", models, out, "unfetched", "mixtral").returncode in (
        -signal.SIGSEGV,
        128 + signal.SIGSEGV,
    )
    assert not out.exists()


@pytest.mark.slow
def test_what_is_asked_beforehand_is_what_an_engine_has(models: Path) -> None:
    save_tokenizer(path := make_mixture("mixtral", models), 2048)
    (said,) = answers([question("m", path, dtype="float32")]).values()
    assert said["facts"]["experts"] == {"layers": 4, "count": 8, "slices": [65536, 32768]}
    report = _generated(models, "experts", "mixtral")
    assert report["expert_bytes"] == 65536 + 32768 and report["movable"] == 7


@pytest.mark.slow
def test_a_slow_link_changes_no_output(models: Path) -> None:
    slow = _generated(models, "slow", "mixtral")["rounds"]
    assert slow == _generated(models, "plain", "mixtral")["rounds"][:1]


@pytest.mark.slow
def test_without_waiting_the_output_differs(models: Path) -> None:
    broken = _generated(models, "nowait", "mixtral")["rounds"]
    assert broken != _generated(models, "plain", "mixtral")["rounds"][:1]


@pytest.mark.rare
@pytest.mark.parametrize("family", FAMILIES)
def test_copies_on_peers_change_no_output(models: Path, family: str) -> None:
    """Experts are read from copies on peers, which take their memory back and lend it again. The
    outputs are plain vLLM's.
    """
    ours = _generated(models, "peers", family)
    assert ours["rounds"] == _generated(models, "plain", family)["rounds"]
    assert ours["from_peers"] > 10 and ours["loads"] > ours["from_peers"]
    assert ours["revocations"] > 5


@pytest.mark.slow
def test_a_copy_that_is_read_after_its_end_shows(models: Path) -> None:
    broken = _generated(models, "unrecalled", "mixtral")
    assert broken["rounds"] != _generated(models, "plain", "mixtral")["rounds"]
