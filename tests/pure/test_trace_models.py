"""Traces of many models, by small made files: GenTD26's rows and ServeGen's clients."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest

from mirage.config import Traffic
from mirage.workload.dealing import deal
from mirage.workload.formats.registry import FORMATS
from mirage.workload.public import TRACES
from mirage.workload.trace import Reading, TraceError, TraceRequest, read

pytestmark = pytest.mark.pure

HEADER = (
    "gmt_create,predict_type,predict_status,exec_time_seconds,groupId,prompt_length,"
    "negative_prompt_length,num_images_per_prompt,num_inference_steps,"
    "checkpoint_model_version_id,num_lora"
)
ROWS = (
    "2024-11-15 16:57:50,TXT_2_IMG,SUCCEED,32.0,G0000,63.0,26.0,1.0,30.0,M0000,0",
    "2024-11-15 16:57:52,TXT_2_IMG,FAILED,3.0,G0001,93.0,,1.0,40.0,M0001,0",
    "2024-11-15 16:58:00,IMG_2_IMG,SUCCEED,36.0,G0001,,,8.0,40.0,M0001,0",
    "2024-11-15 16:58:00,IMG_2_IMG,PENDING,36.0,G0001,,,8.0,40.0,M0000,0",
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "lora_request_trace.csv"
    path.write_text("\n".join((HEADER, *ROWS)) + "\n")
    return path


def client(folder: Path, *windows: str, lengths: dict[str, Any] | None = None) -> Path:
    path = folder / "chunk-7-trace.csv"
    path.write_text("\n".join(windows) + "\n")
    if lengths is not None:
        (folder / "chunk-7-dataset.json").write_text(json.dumps(lengths))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        list(read(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- GenTD26 ----------------------------------------------------------------------------


def test_times_and_models_are_the_files_and_lengths_are_drawn(images: Path) -> None:
    skipped: Counter[str] = Counter()
    found = list(read(images, skipped=skipped))
    assert [(r.arrival_s, r.model) for r in found] == [(0, "M0000"), (10, "M0001"), (10, "M0000")]
    assert skipped == {"failed requests": 1}
    assert all(r.context_tokens > 0 and r.output_tokens > 0 for r in found)
    assert found == list(read(images))
    assert found != list(read(images, Reading(seed=1)))


def test_a_row_without_a_model_is_skipped(images: Path) -> None:
    before = list(read(images))
    images.write_text(images.read_text() + "2024-11-15 16:59:00,X,SUCCEED,1,G,,,1,1,,0\n")
    skipped: Counter[str] = Counter()
    assert list(read(images, skipped=skipped)) == before
    assert skipped["rows that name no model"] == 1


def test_requests_of_a_model_go_to_one_tenant_and_models_in_turn() -> None:
    rows = [TraceRequest(float(i), 1, 1, model=f"m{i % 5}") for i in range(50)]
    dealt = list(deal(rows, ["a", "b", "c"], Traffic(), 0))
    of = {request.model: name for name, request in dealt}
    assert of == {"m0": "a", "m1": "b", "m2": "c", "m3": "a", "m4": "b"}
    assert all(of[request.model] == name for name, request in dealt)
    assert [request for _, request in dealt] == rows


def test_scaling_time_keeps_the_model(images: Path) -> None:
    from mirage.workload.trace import scaled

    assert [scaled(r, 2.0, 1.0).model for r in read(images)] == ["M0000", "M0001", "M0000"]


# -- ServeGen ---------------------------------------------------------------------------

LENGTHS = {
    "0": {"input_tokens": "{100: 1.0}", "output_tokens": "{7: 0.5, 9: 0.5}"},
    "600": {"input_tokens": "{}", "output_tokens": "{}"},
    "1200": {"input_tokens": "{50: 0.25, 60: 0.75}", "output_tokens": "{0: 1.0}"},
}


def test_a_client_asks_as_often_as_its_windows_say(tmp_path: Path) -> None:
    path = client(
        tmp_path,
        "0,2.0,1.0,Gamma,1.0,0.5",
        "600,0,0,,0,0",
        "1200,0.5,3.0,Weibull,0.5,1.0",
        lengths=LENGTHS,
    )
    found = list(read(path))
    times = [r.arrival_s for r in found]
    assert times == sorted(times)
    assert [sum(a <= t < a + 600 for t in times) for a in (0, 600, 1200)] == [1200, 0, 300]
    assert max(times) < 1800
    early, late = found[:1200], found[1200:]
    assert {r.context_tokens for r in early} == {100}
    assert {r.output_tokens for r in early} == {7, 9}
    assert {r.context_tokens for r in late} == {50, 60}
    assert {r.output_tokens for r in late} == {1}, "an answer has a token at least"
    assert mean(r.context_tokens == 60 for r in late) == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize(("law", "shape", "cv"), [("Gamma", 0.25, 2.0), ("Weibull", 0.6, 1.76)])
def test_gaps_vary_as_their_law_says(tmp_path: Path, law: str, shape: float, cv: float) -> None:
    path = client(tmp_path, f"0,30.0,{cv},{law},{shape},1.0")
    times = [r.arrival_s for r in read(path)]
    gaps = [b - a for a, b in pairwise(times)]
    assert pstdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.1)


def test_without_a_dataset_lengths_are_drawn(tmp_path: Path) -> None:
    path = client(tmp_path, "0,1.0,1.0,Gamma,1.0,1.0")
    assert len({r.context_tokens for r in read(path)}) > 100
    assert list(read(path)) == list(read(path))


@pytest.mark.parametrize(
    "lengths",
    [
        {"input_tokens": "{3: 1}"},
        {"input_tokens": "[3, 1]", "output_tokens": "{3: 1}"},
        {"input_tokens": "3", "output_tokens": "{3: 1}"},
    ],
)
def test_a_dataset_that_is_none_is_named(tmp_path: Path, lengths: dict[str, str]) -> None:
    path = client(tmp_path, "0,1.0,1.0,Gamma,1.0,1.0", lengths={"0": lengths})
    assert "chunk-7-dataset.json: is no dataset of ServeGen" in refusal(path)


@pytest.mark.parametrize(
    "row", ["600,-1,1,Gamma,1,1", "600,1,1,,1,1", "600,1,1,Gamma,0,1", "600,nan,1,Gamma,1,1", "600"]
)
def test_a_damaged_window_is_named(tmp_path: Path, row: str) -> None:
    path = client(tmp_path, "0,1.0,1.0,Gamma,1.0,1.0", row)
    assert "line 2: found" in refusal(path)


def test_windows_out_of_order_are_named(tmp_path: Path) -> None:
    path = client(tmp_path, "600,1.0,1.0,Gamma,1.0,1.0", "0,1.0,1.0,Gamma,1.0,1.0")
    assert "line 2: time goes back" in refusal(path)


# -- the public ones --------------------------------------------------------------------


def test_each_public_trace_has_a_known_format_and_a_licence() -> None:
    assert {one.format for one in TRACES.values()} <= set(FORMATS)
    clients = [one for one in TRACES.values() if one.format == "servegen"]
    assert len(clients) == 4
    for one in clients:
        assert one.licence == "Apache 2.0"
        assert one.beside is not None
        assert one.beside.file == one.file.replace("-trace.csv", "-dataset.json")
        assert [each.file for each in one.files] == [one.beside.file, one.file]
    assert TRACES["gentd26"].licence == "for research or study"
