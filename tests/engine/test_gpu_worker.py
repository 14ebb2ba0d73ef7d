"""Parts of the GPU worker that run without a GPU: vLLM's choice of graphs, and layouts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from vllm.compilation import monitor
from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CompilationConfig, CUDAGraphMode, SchedulerConfig, VllmConfig
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager
from vllm.v1.worker.worker_base import WorkerBase

from mirage.config import Policy
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.elastic_worker import ElasticWorker
from mirage.engine.engine_times import EngineTimes
from mirage.engine.gpu_worker import MirageGPUWorker, only_mapped_blocks
from mirage.engine.graphs import gate, known
from mirage.engine.layouts import elastic_layouts, layouts_on_cpu, layouts_on_gpu
from mirage.engine.mailbox import Mailbox
from mirage.engine.start_times import StartTimes
from tests.settings import engine_settings

pytestmark = pytest.mark.engine
SEQUENCES = 4


class Streaming:
    """Stand-in for a streamer; the test says whether layers stream."""

    now = False

    def __call__(self) -> bool:
        return self.now


@pytest.fixture
def streaming() -> Streaming:
    return Streaming()


@pytest.fixture
def breakable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")


def dispatcher() -> CudagraphDispatcher:
    """vLLM's graph dispatcher for the first model runner: whole graphs for decode, graphs in pieces
    for all steps.
    """
    scheduling = SchedulerConfig(
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=64,
        max_model_len=64,
        is_encoder_decoder=False,
    )
    config = VllmConfig(
        scheduler_config=scheduling,
        compilation_config=CompilationConfig(
            mode=0,
            cudagraph_mode="FULL_AND_PIECEWISE",
            cudagraph_capture_sizes=[1, 2, 4],
            max_cudagraph_capture_size=4,
        ),
    )
    config.compilation_config.cudagraph_capture_sizes = [1, 2, 4]
    config.compilation_config.max_cudagraph_capture_size = 4
    made = CudagraphDispatcher(config)
    made.initialize_cudagraph_keys(CUDAGraphMode.FULL_AND_PIECEWISE)
    return made


def manager() -> CudaGraphManager:
    """vLLM's graph manager for the second model runner, with two captured graphs."""
    made = CudaGraphManager.__new__(CudaGraphManager)
    captured = [
        BatchExecutionDescriptor(cg_mode=mode, num_tokens=SEQUENCES, num_reqs=requests)
        for mode, requests in ((CUDAGraphMode.FULL, SEQUENCES), (CUDAGraphMode.PIECEWISE, None))
    ]
    made._lora_dispatch_map, made._max_lora_case = {}, 0
    made._candidates = {(SEQUENCES, 0): captured}
    made._graphs_captured = True
    made.graphs = {graph: object() for graph in captured}  # type: ignore[misc]
    made.breakable_cg_runner = None
    return made


PIECES = pytest.mark.parametrize(
    ("pieces", "meanwhile"), [(True, CUDAGraphMode.PIECEWISE), (False, CUDAGraphMode.NONE)]
)


@PIECES
@pytest.mark.usefixtures("breakable")
def test_the_first_runner_replays_whole_graphs_only_while_nothing_streams(
    streaming: Streaming, pieces: bool, meanwhile: CUDAGraphMode
) -> None:
    runner = SimpleNamespace(cudagraph_dispatcher=dispatcher())
    gate(runner, streaming, pieces)
    whole, eager = {CUDAGraphMode.FULL}, {CUDAGraphMode.NONE}

    def mode(**more: Any) -> CUDAGraphMode:
        return runner.cudagraph_dispatcher.dispatch(SEQUENCES, uniform_decode=True, **more)[0]

    for _ in range(2):
        streaming.now = False
        assert mode() is CUDAGraphMode.FULL
        assert mode(invalid_modes=whole) is CUDAGraphMode.PIECEWISE
        streaming.now = True
        assert mode() is mode(invalid_modes=whole) is meanwhile
        assert mode(invalid_modes={CUDAGraphMode.PIECEWISE}) is CUDAGraphMode.NONE
        assert mode(valid_modes=eager) is mode(valid_modes=whole) is CUDAGraphMode.NONE


@PIECES
def test_the_second_runner_replays_whole_graphs_only_while_nothing_streams(
    streaming: Streaming, pieces: bool, meanwhile: CUDAGraphMode
) -> None:
    runner = SimpleNamespace(cudagraph_manager=manager())
    gate(runner, streaming, pieces)

    def mode() -> CUDAGraphMode:
        return runner.cudagraph_manager.dispatch(SEQUENCES, SEQUENCES, 1, 0).cg_mode

    for _ in range(2):
        streaming.now = False
        assert mode() is CUDAGraphMode.FULL
        streaming.now = True
        assert mode() is meanwhile


@pytest.mark.usefixtures("breakable")
def test_it_is_said_how_steps_run_while_layers_stream(
    streaming: Streaming, caplog: pytest.LogCaptureFixture
) -> None:
    for pieces in (True, False):
        gate(SimpleNamespace(cudagraph_dispatcher=dispatcher()), streaming, pieces)
        gate(SimpleNamespace(cudagraph_manager=manager()), streaming, pieces)
    in_pieces, likewise, eagerly, also = warnings(caplog)
    assert in_pieces == likewise != eagerly == also


def test_a_layout_in_which_a_kv_cache_can_grow_is_chosen() -> None:
    assert elastic_layouts(["LBNHC", "BLHNC", "BLNHC"]) == ["BLHNC", "BLNHC"]
    assert elastic_layouts(["LHBNC", "LBNHC"]) == ["LBNHC"], "larger extents, but it can grow"
    with pytest.raises(RuntimeError, match=r"as LHBNC, and none of BLHNC, BLNHC, .*: choose ano"):
        elastic_layouts(["LHBNC"])


def test_on_a_gpu_all_policies_have_one_layout_if_there_is_one() -> None:
    declared = ["LBNHC", "BLHNC"]
    assert layouts_on_gpu(declared, elastic=True) == layouts_on_gpu(declared, elastic=False)
    assert layouts_on_gpu(["LHBNC"], elastic=False) == ["LHBNC"]
    with pytest.raises(RuntimeError, match="choose another"):
        layouts_on_gpu(["LHBNC"], elastic=True)


def test_on_a_cpu_only_latent_attention_needs_its_blocks_side_by_side() -> None:
    declared = ["LBNHC", "BLHNC"]
    assert layouts_on_cpu(declared, mla=False) == ["BLHNC"]
    assert layouts_on_cpu(declared, mla=True) == ["LBNHC"]


def test_the_worker_extends_vllms_own() -> None:
    """Each method of our worker, except the hooks for tests, overrides one of vLLM's class."""
    from vllm.v1.worker.gpu_worker import Worker

    ours = [c for c in MirageGPUWorker.__mro__ if c.__module__.startswith("mirage.")]
    own = {name for c in ours for name, value in vars(c).items() if callable(value)}
    own -= {"make_memory", "make_start_up", "join_pool"}  # for `tests.tampered` to override
    assert own and all(hasattr(Worker, name) for name in own), own


def test_warm_up_sees_the_blocks_that_have_memory() -> None:
    runner = SimpleNamespace(kv_cache_config=SimpleNamespace(num_blocks=960))
    kv: Any = SimpleNamespace(extents=SimpleNamespace(mapped={0, 1, 2}, blocks_per_extent=8))
    with pytest.raises(ValueError), only_mapped_blocks(runner, kv):
        assert runner.kv_cache_config.num_blocks == 24
        raise ValueError
    assert runner.kv_cache_config.num_blocks == 960
    with only_mapped_blocks(runner, None):
        assert runner.kv_cache_config.num_blocks == 960


def worker(runner: SimpleNamespace, *, eager: bool = False, moves: bool = True) -> Any:
    """A worker just before its warm-up, with only the parts that the warm-up needs."""
    made: Any = MirageGPUWorker.__new__(MirageGPUWorker)
    made.model_runner = runner
    made.captured = False
    made.start_times = StartTimes()

    def capture() -> int:
        made.captured = made.compilation_config.cudagraph_mode is not CUDAGraphMode.NONE
        return 0

    vars(runner).setdefault("capture_model", capture)
    runner.kv_cache_config = SimpleNamespace(num_blocks=960)
    made.model_config = SimpleNamespace(enforce_eager=eager)
    made.vllm_config = VllmConfig()
    made.compilation_config = SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    kv = SimpleNamespace(extents=SimpleNamespace(mapped={0, 1}, blocks_per_extent=8))
    memory = SimpleNamespace(
        kv=kv,
        streamer=object() if moves else None,
        streaming=False,
        interrupted=False,
        pieces=True,
        layers_remapped=0,
        stream_slots=0,
        experts=0,
    )
    made.mirage = SimpleNamespace(memory=memory, times=SimpleNamespace(warm=False))

    def prove_compiled(proven: Any, forward: Any) -> None:
        assert proven is runner and not made.captured, "what is captured has been proven"
        made.proven = True

    made.start_up = SimpleNamespace(prove_compiled=prove_compiled)
    return made


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List of the numbers of blocks that vLLM's warm-up found, one for each call."""
    from vllm.v1.worker.gpu_worker import Worker

    seen: list[int] = []

    def warm_up(self: Any) -> str:
        seen.append(self.model_runner.kv_cache_config.num_blocks)
        assert not self.mirage.times.warm
        if not self.model_config.enforce_eager:
            self.model_runner.capture_model()
        return "done"

    monkeypatch.setattr(Worker, "compile_or_warm_up_model", warm_up)
    return seen


def test_graphs_are_gated_once_they_are_captured(warmed: list[int]) -> None:
    runner = SimpleNamespace(cudagraph_manager=manager())
    ours = worker(runner)
    assert ours.compile_or_warm_up_model() == "done"
    assert warmed == [16] and runner.kv_cache_config.num_blocks == 960
    assert ours.mirage.times.warm and ours.proven
    assert not hasattr(ours, "start_up"), "nobody needs it any more"
    for interrupted, mode in ((True, CUDAGraphMode.PIECEWISE), (False, CUDAGraphMode.FULL)):
        ours.mirage.memory.interrupted = interrupted
        assert runner.cudagraph_manager.dispatch(SEQUENCES, SEQUENCES, 1, 0).cg_mode is mode


@pytest.mark.parametrize(
    ("away", "words"),
    [
        (
            {"streaming": True, "layers_remapped": 2, "stream_slots": 1},
            r"layers stream \(2 remapped, 1 slots\), or exp",
        ),
        ({"experts": 3}, r"or experts are away \(3\)"),
    ],
)
def test_nothing_is_captured_while_anything_is_away(
    away: dict[str, Any], words: str, warmed: list[int]
) -> None:
    """Layers or experts are away when graphs are to be captured. This fault ends the engine; it
    does not make steps eager, as a failed capture does.
    """
    ours = worker(SimpleNamespace(cudagraph_manager=manager()))
    vars(ours.mirage.memory).update(away)
    with pytest.raises(RuntimeError, match=words):
        ours.compile_or_warm_up_model()
    assert not ours.captured and not ours.model_config.enforce_eager


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings of our code in the log, about an engine that runs otherwise than requested."""
    ours = (each for each in caplog.records if each.name.startswith("mirage."))
    return [each.getMessage() for each in ours if each.levelno == logging.WARNING]


OF_ALL, OF_RUNNER = (0, 1), (0, 2)
"""Pools of memory that graphs were captured into."""


def captured_before() -> tuple[BreakableCUDAGraphWrapper, CUDAGraphWrapper]:
    """Wrappers of both kinds, for graphs in pieces and for whole graphs. Each holds an object in
    place of a captured graph.
    """
    in_pieces = BreakableCUDAGraphWrapper.__new__(BreakableCUDAGraphWrapper)
    whole = CUDAGraphWrapper.__new__(CUDAGraphWrapper)
    in_pieces.entries = {"batch": object()}  # type: ignore[dict-item]
    whole.concrete_cudagraph_entries = {"batch": object()}  # type: ignore[dict-item]
    in_pieces.graph_pool = whole.graph_pool = OF_ALL
    BreakableCUDAGraphWrapper._all_instances.add(in_pieces)
    CUDAGraphWrapper._all_instances.add(whole)
    monitor.set_cudagraph_capturing_enabled(True)
    return in_pieces, whole


def test_steps_of_the_warm_up_do_not_tell_how_long_a_layer_computes() -> None:
    settings = engine_settings(page=4096)
    times = EngineTimes(DeviceMemory(settings))
    with times.timed_step(1):
        pass
    assert times.layer_compute_s == 0.0
    times.warm = True
    with times.timed_step(1):
        pass
    assert times.layer_compute_s > 0.0


def test_no_message_is_acted_upon_while_a_runner_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message that arrives while the runner samples is handled only after that."""
    handled: list[Any] = []

    class Sampling:
        def sample_tokens(self, grammar: Any) -> list[Any]:
            poster = threading.Thread(target=mailbox.post, args=("a message",))
            poster.start()
            poster.join()
            return list(handled)

    class Worker(ElasticWorker, Sampling):
        pass

    worker = object.__new__(Worker)
    monkeypatch.delattr(WorkerBase, "sample_tokens")
    mailbox = Mailbox()
    mailbox.read_by(handled.append)
    worker.mirage = SimpleNamespace(mailbox=mailbox)
    assert worker.sample_tokens(None) == []
    assert handled == ["a message"]


@pytest.mark.usefixtures("breakable")
@pytest.mark.parametrize("second", [True, False])
def test_a_capture_that_fails_leaves_eager_steps(
    second: bool,
    warmed: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def end(device: int, pool: tuple[int, int]) -> None:
        ended.append((device, pool))
        if pool != OF_ALL:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    ended: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    runner = SimpleNamespace(capture_model=fail, device=torch.device("cuda:1"))
    if second:
        runner.cudagraph_manager = manager()
        runner.cudagraph_manager.pool = OF_RUNNER
    else:
        runner.cudagraph_dispatcher = dispatcher()
    ours = worker(runner)
    ours.mirage.streaming = False  # type: ignore[misc]
    in_pieces, whole = captured_before()
    assert ours.compile_or_warm_up_model() == "done"
    (told,) = warnings(caplog)
    assert "CUDA out of memory" in told and ours.model_config.enforce_eager
    assert not in_pieces.entries and not whole.concrete_cudagraph_entries
    assert not monitor.cudagraph_capturing_enabled
    pools = {(1, OF_ALL), (1, OF_RUNNER)} if second else {(1, OF_ALL)}
    assert set(ended) == pools, "torch's allocator believes in the capture no longer"
    if second:
        assert not runner.cudagraph_manager.graphs, "their memory is wanted back"
        mode = runner.cudagraph_manager.dispatch(SEQUENCES, SEQUENCES, 1, 0).cg_mode
    else:
        mode = runner.cudagraph_dispatcher.dispatch(SEQUENCES, uniform_decode=True)[0]
    assert mode is CUDAGraphMode.NONE
    assert warmed == [16]


class RunnerOfTomorrow(SimpleNamespace):
    """Model runner that chooses its graphs elsewhere than vLLM's present ones."""

    def choose(self) -> Any:
        return self.graph_atlas


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Function that makes a worker whose device counts as initialised, without a device."""
    monkeypatch.setattr(ElasticWorker, "init_device", lambda self: None)

    def make(runner: Any, *, eager: bool = False, moves: bool = True) -> Any:
        ours = worker(runner, eager=eager, moves=moves)
        ours.mirage.settings = SimpleNamespace(  # type: ignore[misc]
            policy=Policy.MIRAGE if moves else Policy.POOLED
        )
        ours.init_device()
        return ours

    return make


def test_eager_steps_are_told_of_and_gate_nothing(
    warmed: list[int], made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    ours = made(RunnerOfTomorrow(), eager=True)
    (told,) = warnings(caplog)
    assert "device.graphs" in told, "the key of the configuration that has it so"
    assert ours.compile_or_warm_up_model() == "done"
    assert warmed == [16] and not ours.captured


@pytest.mark.usefixtures("warmed")
@pytest.mark.parametrize("moves", [True, False])
def test_graphs_that_nobody_knows_are_not_captured_unless_nothing_ever_streams(
    moves: bool, made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    ours = made(RunnerOfTomorrow(), moves=moves)
    assert len(warnings(caplog)) == moves
    captures = ours.compilation_config.cudagraph_mode is not CUDAGraphMode.NONE
    assert captures != moves, "known before a model is loaded and wrapped"
    assert ours.compile_or_warm_up_model() == "done"
    assert ours.captured != moves


def test_both_of_vllms_runners_are_known_before_they_have_graphs() -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as Second
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as First

    assert known(First) and known(Second) and not known(RunnerOfTomorrow)


def test_graphs_that_are_not_where_they_were_replay_nothing(streaming: Streaming) -> None:
    with pytest.raises(RuntimeError, match=r"device\.graphs"):
        gate(SimpleNamespace(), streaming, pieces=True)
