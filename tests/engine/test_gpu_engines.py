"""The rows of `make gpu-smoke` and `make gpu-test` that need vLLM, with engines on host memory."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.v1.attention.backends.registry import AttentionBackendEnum

from benchmarks.gpu import (
    as_served,
    backends,
    engine_child,
    engines,
    layers,
    others,
    small,
    stock,
    together,
    waves,
)
from benchmarks.gpu.bench import MARGIN_S, Bench
from benchmarks.gpu.rows import Row
from benchmarks.gpu.ways import COMPILED, EAGERLY, GRAPHS, ON_GPU
from mirage.arguments.variables import ENVIRONMENT
from mirage.config import Config, ConfigError
from mirage.serve.launch import launcher
from mirage.serve.rundir.folders import RunDir
from mirage.tools.demo.models import circuit_of
from mirage.vllm_hooks import given

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def as_a_shell_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that vLLM sets in the environment when a configuration is made."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def no_driver(*_: object, **__: object) -> None:
    raise AssertionError("these rows open no driver themselves")


HOST = Bench(dry=True, open=no_driver)  # type: ignore[arg-type]


@pytest.mark.rare
def test_the_smoke_row_moves_memory_and_the_texts_stay() -> None:
    assert engines.checked(HOST).holds
    row = engines.eagerly(HOST)
    assert row.holds, row.value
    assert row.details["layers_remapped"] == row.details["layers"] - 1
    assert row.details["extents"][1] > row.details["extents"][0]


@pytest.mark.rare
def test_outputs_are_bit_identical_and_without_waits_they_differ() -> None:
    alike, control = engines._alike(HOST, way=EAGERLY)
    assert alike.holds, alike.value
    assert control.holds, control.value


@pytest.mark.rare
def test_so_are_those_of_compiled_steps() -> None:
    """Compiled steps give the same tokens as plain vLLM's, and the control gives others. On a CPU
    torch.compile makes one graph of a model, with attention outside of it.
    """
    alike, control = engines._alike(HOST, way=COMPILED)
    assert alike.holds, alike.value
    assert control.holds, control.value
    assert alike.details["compiled"] and not alike.details["eager"]


@pytest.mark.slow
def test_layers_on_a_gpu_are_copied_in_chunks_and_compute_the_same_circuit() -> None:
    host, gpu = (small.config(dry, way=EAGERLY) for dry in (True, False))
    assert gpu.device.memory == 2 << 30
    assert small.LAYER_BYTES[False] >= 4 * gpu.device.copy_chunk
    circuits = [circuit_of(config.tenants[0].model) for config in (host, gpu)]
    said = [circuit.generate(small.prompts()[0], small.TOKENS) for circuit in circuits]
    assert said[0] == said[1] == small.exact()[0]
    weights = gpu.tenants[0].model / "model.safetensors"
    assert weights.stat().st_size > 7.9 * small.LAYER_BYTES[False]


@pytest.mark.rare
def test_an_engine_that_ends_is_a_miss_with_its_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(given.WORKERS, "host", "mirage.engine.nowhere.Worker")
    row = engines.eagerly(HOST)
    assert row.holds is False
    assert "exit code 1, while starting" in row.value
    assert "mirage.engine.nowhere" in row.value


@pytest.mark.slow
def test_one_that_hangs_is_ended_and_said_to_be_late() -> None:
    small.fit(True, way=EAGERLY)  # asked first, and not again
    row = engines.eagerly(replace(HOST, end=time.monotonic() + MARGIN_S + 2))
    assert row.holds is False and "not done after 2 s" in row.value


def test_another_text_is_told_by_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [[text, []] for text in small.exact()]
    other = [[[0, *said[0][0][1:]], []], *said[1:]]
    wrong = engines._wrong(engines.Found([said, said, other, said, said], {}))
    assert wrong == ["round 3 (layers away -1) differs in 1 of 10 texts"]
    assert engines._wrong(engines.Found([other, other], {})) == [
        "1 of 10 texts are not the circuit's"
    ]


@pytest.mark.rare
def test_steps_of_our_engine_are_timed_by_batch() -> None:
    config, fit = (
        small.config(True, way=EAGERLY),
        small.fit(True, way=EAGERLY),
    )
    command = launcher.command(config, config.tenants[0], fit, Path(), None)
    times = stock.step_times(engine_child.Engine(command, config, 100), [1, 4])
    assert times.keys() == {"1", "4"} and all(0 < seconds < 5 for seconds in times.values())


@pytest.mark.rare
def test_a_step_is_timed_with_layers_away_and_around_a_move() -> None:
    *steps, itl, beside, trace = layers.measured(HOST)
    assert [row.name for row in steps] == ["layers away, 2 requests", "layers away, 4 requests"]
    for row in steps:
        for name, one in row.details.items():
            assert one["step_s"] > 0 and one["compute_s"] > 0 and one["load_s"] > 0, name
            assert one["streaming_host_s"] > 0 or not one["layers_remapped"], name
        assert row.details["2"]["layers_remapped"] == 2
    assert itl.details["quiet"] and len(itl.details["moves"]) == 4
    assert beside.value.startswith("skipped: ") and trace.holds, trace.value


@pytest.mark.rare
def test_outputs_as_served_are_bit_identical_in_pieces() -> None:
    alike, control = as_served.alike(HOST)
    assert alike.holds and control.holds, (alike.value, control.value)
    assert alike.details["layers_remapped"] == alike.details["layers"] - 1


@pytest.mark.rare
def test_two_engines_decode_at_once() -> None:
    row = together.plain(HOST)
    assert "alone; at once" in row.value, row.value
    assert all(one["step_s"] > 0 for one in row.details["at once"])


@pytest.mark.rare
def test_layers_go_and_come_as_one() -> None:
    row = others.sleep_mode(HOST)
    assert "skipped: vLLM on a host has none; our layers but one" in row.value, row.value
    assert row.details["ours"]["bytes"] >= 7 * small.LAYER_BYTES[True]


STOCK, OURS = {"1": 0.010, "16": 0.020}, {"1": 0.0101, "16": 0.02}


def test_what_is_slower_than_stock_vllm_is_a_miss() -> None:
    slow = {"1": 0.015, "16": 0.020}
    ways: dict[str, stock.Timed] = {"eagerly": lambda: slow, "with graphs": lambda: OURS}
    eagerly, graphs = stock.compared_all(lambda: STOCK, ways)
    assert eagerly.holds is False and "1.500 at 1 (15.00 ms)" in eagerly.value
    assert graphs.holds is True


def ended() -> dict[str, float]:
    raise engine_child.Ended("the engine ended, not done after 400 s")


def test_an_engine_that_is_late_loses_no_other_row() -> None:
    late, ours = stock.compared_all(lambda: STOCK, {"eagerly": ended, "with graphs": lambda: OURS})
    assert late.holds is False and "not done after 400 s" in late.value
    assert ours.holds is True and ours.name == "against stock vLLM, with graphs"
    late, ours = stock.compared_all(ended, {"with graphs": lambda: OURS})
    assert late.holds is False and late.name == "against stock vLLM, stock vLLM"
    assert ours.holds is None and ours.value == "at 1 (10.10 ms), at 16 (20.00 ms)"


def test_a_row_is_there_before_the_next_engine_starts() -> None:
    begun = []

    def eagerly() -> dict[str, float]:
        begun.append("eagerly")
        return OURS

    def graphs() -> dict[str, float]:
        begun.append("with graphs")
        return OURS

    rows = stock.compared_all(lambda: STOCK, {"eagerly": eagerly, "with graphs": graphs})
    next(rows)
    assert begun == ["eagerly"]


BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"


@pytest.mark.parametrize("outside", [None, "0"])
def test_each_engine_has_the_environment_that_it_is_served_with(
    outside: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if outside is not None:
        monkeypatch.setenv(BREAKABLE, outside)
    folder = Path("anywhere")

    def breakable(engine: engine_child.Engine) -> str | None:
        with RunDir(None) as rundir:
            return engine.environment(rundir).get(BREAKABLE)

    ways = {way: stock.large(folder, way=way) for way in ON_GPU}
    ours = {way: breakable(engine_child.Engine([], ways[way], 1)) for way in ways}
    assert ours == {EAGERLY: outside, GRAPHS: "1", COMPILED: outside}
    assert breakable(stock.plain(folder, 1)) is None
    assert breakable(engine_child.Engine([], ways[GRAPHS], 1, stock=True)) is None


@pytest.mark.slow
def test_kernels_of_engines_held_against_the_circuit_multiply_float32_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/anywhere")
    asked = []

    def ran(engine: engine_child.Engine, spec: object) -> dict[str, object]:
        with RunDir(None) as rundir:
            asked.append(engine.environment(rundir))
        return {"rounds": []}

    monkeypatch.setattr(engines, "ran", ran)
    engines._run(HOST, way=EAGERLY)
    assert asked[0]["TRITON_F32_DEFAULT"] == "ieee"
    assert asked[0]["TRITON_CACHE_DIR"] == str(engines.ROOT / "out" / "gpu" / "triton")
    with RunDir(None) as rundir:
        timed = stock.plain(Path("anywhere"), 1).environment(rundir)
    assert "TRITON_F32_DEFAULT" not in timed and timed["TRITON_CACHE_DIR"] == "/anywhere"


@pytest.mark.rare
def test_kv_shrinks_under_decode_and_the_texts_stay() -> None:
    (row,) = backends.under_decode(HOST, way=EAGERLY)
    assert row.holds, row.value
    assert row.name == "KV under decode, CPU_ATTN, eagerly"
    rest, *moving = row.details["counts"]
    assert rest["mapped"] == rest["unmapped"] == 0 and rest["fewest"] == rest["most"]
    assert len(moving) == 2
    for count in moving:
        assert count["mapped"] >= 10 and count["unmapped"] >= 10, "while requests ran"
        assert count["fewest"] + 5 <= count["most"] <= rest["most"]
        assert count["steps"] == rest["steps"] == waves.APART * waves.NUMBER


THREE = Bench(dry=False, open=no_driver)  # type: ignore[arg-type]
CALM = {"steps": 240, "fewest": 9, "most": 9, "mapped": 0, "unmapped": 0}
MOVING = CALM | {"most": 17, "mapped": 15, "unmapped": 20}
TEXTS = [[[1, 2], []], [[3, 4], []]]
FOUND = {"rounds": [TEXTS] * 3, "counts": [CALM, MOVING, MOVING], "eager": True}


def rows_of(found: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Rows for three attention backends: the engine with FLASH_ATTN ends, FLASHINFER is refused,
    and TRITON_ATTN gives the result `found`.
    """

    words = refusal(monkeypatch)

    def served(config: Config, limit_s: float) -> str:
        backend = str(config.tenants[0].engine_args["attention_backend"])
        if backend == "FLASHINFER":
            raise ConfigError(f"tenant 'waves': vLLM refuses it: {words}")
        return backend

    def ran(engine: str, spec: object) -> dict[str, object]:
        if engine == "FLASH_ATTN":
            raise engine_child.Ended("the engine ended: CUDA error: an illegal memory access")
        return found

    monkeypatch.setattr(engine_child, "served", served)
    monkeypatch.setattr(engine_child, "ran", ran)
    return list(backends.under_decode(THREE, way=EAGERLY))


def refusal(monkeypatch: pytest.MonkeyPatch) -> str:
    """vLLM's message when an attention backend is not available: FlashInfer, which is not installed
    here.
    """
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.delitem(sys.modules, "vllm.v1.attention.backends.flashinfer", raising=False)
    kernels = "vllm._C_stable_libtorch"
    monkeypatch.setitem(sys.modules, kernels, ModuleType(kernels))
    from vllm.platforms.cuda import CudaPlatformBase

    config = SimpleNamespace(_asdict=dict)
    asked = SimpleNamespace(get_device_capability=lambda: (9, 0))
    ask = CudaPlatformBase.get_attn_backend_cls.__func__  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="FLASHINFER") as refused:
        ask(asked, AttentionBackendEnum.FLASHINFER, config)
    return str(refused.value)


def test_each_backend_has_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    flash, flashinfer, triton = rows_of(FOUND, monkeypatch)
    assert flash.holds is False and "illegal memory access" in flash.value
    assert flashinfer.holds is None
    assert flashinfer.value.startswith("skipped: Selected backend")
    assert "flashinfer" in flashinfer.value.partition("Reason: ")[2]
    assert triton.name == "KV under decode, TRITON_ATTN, eagerly"
    assert triton.holds and triton.value == (
        "9 to 17 extents, 40 unmapped under decode: all texts the same"
    )


OTHER = [TEXTS[0], [[3, 5], []]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rounds": [TEXTS, TEXTS, OTHER]}, "round 3 differs in 1 of 2 texts"),
        (
            {"counts": [CALM, CALM, MOVING]},
            "round 2: KV did not grow and shrink under decode",
        ),
        (
            {"counts": [CALM, MOVING, MOVING | {"steps": 243}]},
            "round 3 took 243 steps instead of 240",
        ),
    ],
)
def test_kv_that_stays_or_another_text_is_a_miss(
    change: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows_of(FOUND | change, monkeypatch)[-1]
    assert row.holds is False and row.value.endswith(f"unmapped under decode: {why}")
