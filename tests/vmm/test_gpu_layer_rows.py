"""Rows of `make gpu-layers`, `gpu-together` and `gpu-others` without vLLM:
questions and results.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import (
    as_served,
    layers,
    layers_run,
    meeting,
    others,
    stock,
    switching,
    together,
)
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.decoding import Decoding
from benchmarks.gpu.engine_child import Ended
from benchmarks.gpu.engine_memory import Memory, in_pieces
from benchmarks.gpu.rows import Row, Skipped, p99
from benchmarks.gpu.spans import Spans
from tests.vmm.fake_engine import COMPUTE_S, LAYERS, LOAD_S, Engine

pytestmark = pytest.mark.vmm
MIB = 1 << 20


def no_driver(*_: object, **__: object) -> None:
    raise AssertionError("no driver is opened")


GPU = Bench(dry=False, open=no_driver)  # type: ignore[arg-type]
HOST = Bench(dry=True, open=no_driver)  # type: ignore[arg-type]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()

    def begin(self: Decoding, batch: int, tokens: int) -> None:
        made.left = tokens

    monkeypatch.setattr(Decoding, "_begin", begin)
    return made


def test_a_step_is_timed_at_each_number_of_layers_away(engine: Engine, tmp_path: Path) -> None:
    spec = {"batches": [4], "tokens": 5, "trace": str(tmp_path / "steps.json.gz")}
    found = layers_run.measured(engine, spec)
    steps = found["steps"]["4"]
    assert [*steps] == ["0", "0 in pieces", "1", "2", "cap", "cap + 2"]
    away = [one["layers_remapped"] for one in steps.values()]
    assert away[:4] == [0, 0, 1, 2] and away[5] == min(away[4] + 2, LAYERS - 2)
    for one in steps.values():
        assert one["compute_s"] == pytest.approx(COMPUTE_S / LAYERS)
        assert one["stall_s"] == pytest.approx(one["layers_remapped"] * LOAD_S)
        assert (one["streaming_host_s"] > 0) is (one["layers_remapped"] > 0)
        assert one["host_s"] > 0 and one["load_s"] == LOAD_S
    assert engine.worker.in_pieces[5:15] == [False] * 5 + [True] * 5
    assert engine.memory.layers_remapped == 0 and not engine.memory.streaming
    assert found["outside"] is None


def test_what_is_measured_is_not_wrapped_any_more(engine: Engine) -> None:
    spans = Spans(engine.engine_core.engine_core)
    with pytest.raises(ZeroDivisionError), spans.counted():
        raise ZeroDivisionError
    for owner, name in ((engine.times, "stepped"), (engine.worker, "execute_model")):
        assert name not in vars(owner)
    with pytest.raises(ZeroDivisionError), in_pieces(engine.memory):
        assert engine.memory.streaming
        raise ZeroDivisionError
    assert not engine.memory.streaming


def test_one_move_comes_at_a_time_and_all_is_as_before(engine: Engine) -> None:
    memory = Memory(engine.engine_core.engine_core.scheduler)
    found = layers_run._moved(Decoding(engine), memory, 2)
    assert [*found["moves"]] == [
        "a layer away",
        "a layer back",
        "extents mapped",
        "extents unmapped",
    ]
    assert all(len(times) == layers_run.NEAR for times in found["moves"].values())
    held = [(one.layers_remapped, one.kv_extents) for one in engine.allotments]
    assert held == [(1, 4), (0, 4), (0, 8), (0, 4), (0, 4)]


def test_steps_of_a_move_are_told_from_others() -> None:
    took = [9.0] * 4 + [1.0] * 4 + [5.0] * 4 + [1.0] * 2
    found = layers_run.apart(took, {8: "move"})
    assert found == {"quiet": [1.0] * 6, "moves": {"move": [5.0] * 4}}


def test_a_trace_can_be_read_and_its_size_is_bounded(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "steps.json.gz"
    found = layers_run.traced(Decoding(engine), path)
    assert found["steps"] == layers_run.TRACED
    with gzip.open(path) as file:
        assert json.load(file)["traceEvents"] is not None
    assert [*path.parent.iterdir()] == [path]
    inside = found | {"file": str(layers.TRACE)}
    assert layers.trace(inside).holds is True
    assert layers.trace(inside | {"bytes": 17 * MIB}).holds is False


def cuda(free: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        is_available=lambda: True,
        synchronize=lambda: None,
        mem_get_info=lambda: (free.pop(0), 1000 * MIB),
    )


def test_memory_beside_the_ledger_is_what_is_gone_and_not_known(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch, "cuda", cuda([600 * MIB]))
    memory = Memory(engine.engine_core.engine_core.scheduler)
    found = layers_run.outside(memory, {"free": 900 * MIB})
    assert found == {"gone": 300 * MIB, "known": 4 * MIB + 10}
    row = layers.beside_the_ledger("a model", found)
    assert row.value == "0.29 GiB of 0.29 GiB"
    assert layers.beside_the_ledger("a model", None).value.startswith("skipped: ")


def step(layers_remapped: int, step_s: float) -> dict[str, float]:
    zero = {"compute_s": 2e-4, "stall_s": 0.0, "host_s": 1e-3, "streaming_host_s": 0.0}
    return zero | {
        "layers_remapped": layers_remapped,
        "stream_slots": 1,
        "step_s": step_s,
        "load_s": 1e-3,
    }


@pytest.mark.parametrize(
    ("layers_remapped", "cap_s", "holds", "aim"),
    [
        (3, 0.0102, True, "<= 1.03 at the cap"),
        (3, 0.0150, False, "<= 1.03 at the cap"),
        (0, 0.0100, None, "no layer hides at this size"),
    ],
)
def test_the_claim_is_judged_at_the_cap_against_a_step_in_pieces(
    layers_remapped: int, cap_s: float, holds: bool | None, aim: str
) -> None:
    steps = {
        "0": step(0, 0.008),
        "0 in pieces": step(0, 0.010),
        "cap": step(layers_remapped, cap_s),
    }
    row = layers.by_remapped("a model", "64", steps)
    assert row.holds is holds and row.aim == aim
    assert f"cap ({layers_remapped}) {cap_s * 1e3:.2f} ms (T_c 200 us, stall 0.00 ms" in row.value


def test_an_engine_that_ends_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object, **__: object) -> None:
        raise Ended("the engine ended, exit code 1, while starting")

    for module, name in ((layers, "_found"), (as_served, "_run"), (together, "_found")):
        monkeypatch.setattr(module, "need_vllm", lambda: None)
        monkeypatch.setattr(module, name, ends)
    found = [*layers.measured(GPU), *as_served.alike(GPU), together.plain(GPU)]
    assert len(found) == 3
    for row in found:
        assert row.holds is False and "while starting" in row.value


SAID = [[[[1, 2], []], [[3], []]]] * 5
OTHER = [[[1, 2], []], [[4], []]]


def outputs(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], broken: Any) -> list[Row]:
    monkeypatch.setattr(as_served, "need_vllm", lambda: None)
    facts = {
        "compiled": True,
        "eager": False,
        "layers_remapped": 7,
        "bytes_streamed": 9,
        "rounds": SAID,
    }

    def run(bench: Bench, *, waits: bool, runs: int) -> dict[str, Any]:
        return facts | (found if waits else {"rounds": broken})

    monkeypatch.setattr(as_served, "_run", run)
    return as_served.alike(GPU)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, ""),
        (
            {"rounds": [*SAID[:2], OTHER, *SAID[3:]]},
            "round 3 (layers away -1) differs in 1 of 2 texts",
        ),
        ({"eager": True}, "no graph was captured"),
        ({"compiled": False}, "nothing was compiled"),
        ({"bytes_streamed": 0}, "no layer streamed"),
    ],
)
def test_outputs_as_served_are_bit_identical_or_a_miss(
    found: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike, control = outputs(monkeypatch, found, [*SAID[:4], OTHER])
    assert alike.name == "outputs, bf16, FLASH_ATTN, compiled"
    assert (alike.holds, control.holds) == (not why, True)
    assert alike.value == (why or "bit-identical, up to 7 layers away")


def test_a_comparison_that_sees_nothing_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    _, control = outputs(monkeypatch, {}, SAID)
    assert control.holds is False and "would not see a fault" in control.value


def test_engines_decode_at_the_same_time(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Engine()
    monkeypatch.setattr(
        Decoding, "_begin", lambda self, batch, tokens: setattr(self._engine, "left", tokens)
    )
    spec = {"folder": str(tmp_path), "number": 2, "batch": 2, "tokens": 6}
    found: dict[int, Any] = {}

    def second() -> None:
        found[1] = meeting.measured(other, spec | {"index": 1})

    thread = threading.Thread(target=second)
    thread.start()
    found[0] = meeting.measured(engine, spec | {"index": 0})
    thread.join()
    assert found[0].keys() == {"alone", "at once"} and found[1].keys() == {"at once"}
    assert found[0]["alone"]["compute_s"] == pytest.approx(COMPUTE_S / LAYERS)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{what}-{index}" for what in ("started", "ready") for index in range(2)
    }


MPS = """#!{python}
import os, signal, sys, time
from pathlib import Path
socket = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / "control"
if sys.argv[1:] == ["-f"]:
    if {broken}:
        sys.exit(3)
    socket.touch()
    while socket.exists():
        time.sleep(0.01)
else:
    assert sys.stdin.read() == "quit\\n"
    socket.unlink(missing_ok=True)
"""


def control(folder: Path, monkeypatch: pytest.MonkeyPatch, *, broken: bool = False) -> None:
    """Put a stand-in for NVIDIA's MPS control program, with what the row uses of it, into PATH."""
    path = folder / together.CONTROL
    path.write_text(MPS.format(python=sys.executable, broken=broken))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


ONE = {"step_s": 0.01, "p99_s": 0.012, "compute_s": 2e-4}


def test_mps_is_started_for_both_engines_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "need_vllm", lambda: None)
    control(tmp_path, monkeypatch)
    seen = []

    def found(bench: Bench, variables: dict[str, str]) -> list[dict[str, Any]]:
        seen.append(Path(variables["CUDA_MPS_PIPE_DIRECTORY"]))
        assert (seen[0] / "control").exists()
        return [
            {"alone": ONE, "at once": ONE | {"step_s": 0.015}},
            {"at once": ONE | {"step_s": 0.02}},
        ]

    monkeypatch.setattr(together, "_found", found)
    row = together.with_mps(GPU)
    assert row.value.endswith("1.50x and 2.00x") and row.holds is None
    assert not seen[0].exists()


def test_without_mps_the_row_is_skipped_and_a_broken_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "need_vllm", lambda: None)
    with pytest.raises(Skipped, match="nvidia-cuda-mps-control is not installed"):
        together.with_mps(GPU)
    control(tmp_path, monkeypatch, broken=True)
    with pytest.raises(RuntimeError, match="nvidia-cuda-mps-control ended with 3"):
        together.with_mps(GPU)


@pytest.fixture
def stocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """List of the questions to plain vLLM's engines and ours, each with the engine's command line
    or configuration; they are answered with made figures.
    """
    asked: list[Any] = []

    def ran(engine: Any, spec: dict[str, Any]) -> dict[str, Any]:
        asked.append((engine, spec))
        if "switch" in spec:
            return {"away_s": 1.5, "back_s": 0.5, "bytes": 24 << 30}
        return {"times": {str(batch): 0.01 for batch in spec["batches"]}}

    monkeypatch.setattr(others, "need_vllm", lambda: None)
    monkeypatch.setattr(others, "ran", ran)
    monkeypatch.setattr(stock, "ran", ran)
    monkeypatch.setattr(stock, "served", lambda config, limit_s: config)
    monkeypatch.setattr(others, "_model", lambda: Path("opt-13b"))
    return asked


def test_vllms_offloader_has_as_many_layers_away_as_ours(stocks: list[Any]) -> None:
    row = others.prefetch(GPU)
    (theirs, asked), (_, ours) = stocks
    words = " ".join(theirs.command)
    assert "--offload-backend prefetch --offload-group-size 10 --offload-num-in-group 1" in words
    assert "away" not in asked and ours["away"] == 40 // others.GROUP == others.AWAY
    assert (
        row.value
        == "10.00 ms against 10.00 ms of ours at 16, 10.00 ms against 10.00 ms of ours at 64"
    )
    with pytest.raises(Skipped, match="needs kernels"):
        others.prefetch(HOST)


def test_sleep_mode_is_timed_beside_ours(stocks: list[Any]) -> None:
    row = others.sleep_mode(GPU)
    (_, ours), (theirs, asked) = stocks
    assert "--enable-sleep-mode" in theirs.command
    assert (ours["switch"], asked["switch"]) == ("layers", "sleep")
    assert row.value.startswith("24.00 GiB in 1500.00 ms, back in 500.00 ms; our layers")


def test_parameters_go_and_come_in_both_ways(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = switching.measured(engine, {"switch": "layers"})
    held = [one.layers_remapped for one in engine.allotments]
    assert held == [LAYERS - 1, 0] * switching.ROUNDS
    assert found["bytes"] == (LAYERS - 1) * MIB and found["away_s"] > 0
    import torch

    monkeypatch.setattr(torch, "cuda", cuda([5 * MIB] + [25 * MIB] * switching.ROUNDS))
    found = switching.measured(engine, {"switch": "sleep"})
    assert engine.asleep == [1, "awake"] * switching.ROUNDS and found["bytes"] == 20 * MIB


def test_kvcached_runs_where_it_is_installed(
    stocks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Skipped, match="kvcached is not installed"):
        others.kvcached(GPU)
    module = ModuleType("kvcached")
    module.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "kvcached", module)
    row = others.kvcached(GPU)
    assert row.value == "10.00 ms at 16, 10.00 ms at 64"
    (engine, _) = stocks[0]
    assert engine.more == others.KVCACHED and engine.stock


def test_the_99th_percentile_is_a_value_that_was_seen() -> None:
    assert p99([1.0]) == 1.0
    assert p99([float(value) for value in range(1, 201)]) == 198.0
    assert p99([float(value) for value in range(1, 11)]) == 10.0
