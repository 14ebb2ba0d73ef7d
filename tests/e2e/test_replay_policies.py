"""One burst of requests under each policy, on real engines, through `mirage replay`."""

from pathlib import Path
from typing import Any

import psutil
import pytest
from bursts import replayed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

POLICIES = ["static", "mirage"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("policies")
    loaded = replayed(folder, ",".join(POLICIES), hot_share=0.9)
    assert not [p for p in psutil.process_iter(["cmdline"]) if _mentions(p, folder)]
    return loaded


def _mentions(process: psutil.Process, folder: Path) -> bool:
    return any(str(folder) in word for word in process.info["cmdline"] or [])


def test_nothing_fails_and_every_text_is_the_same(report: dict[str, Any]) -> None:
    assert [run["policy"] for run in report["runs"]] == POLICIES
    assert [run["completed"] for run in report["runs"]] == [60, 60]
    assert report["outputs_identical"] is True
    assert report["outputs_different"] == 0


def test_what_a_gpu_is_measured_by_is_in_every_report(report: dict[str, Any]) -> None:
    from benchmarks.gpu.serving import KEYS, row, texts

    assert texts(report).holds is True
    for run in report["runs"]:
        shown = row(run, "a trace")
        assert shown.name == f"served, {run['policy']}"
        assert len(shown.details) == len(KEYS) and "output tokens per s" in shown.value


def test_only_static_preempts(report: dict[str, Any]) -> None:
    static, mirage = report["runs"]
    assert static["preemptions"] > 0
    assert mirage["preemptions"] == 0


def test_layers_became_kv_cache(report: dict[str, Any]) -> None:
    static, mirage = report["runs"]
    assert static["layers_remapped_max"] == static["bytes_streamed"] == 0
    assert mirage["layers_remapped_max"] > 0
    assert mirage["kv_blocks_granted_max"] > 2 * static["kv_blocks_granted_max"]
