"""Our table of kernels by class of processor, against the conditions in vLLM's own code."""

from __future__ import annotations

import builtins
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import tiny  # noqa: F401  # its environment counts while vLLM is imported
import torch
import vllm
from vllm.model_executor.kernels.linear.scaled_mm import cpu as scaled_mm
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import CpuArchEnum, current_platform
from vllm.platforms.interface import Platform
from vllm.v1.attention.backends import cpu_attn

from mirage import processors
from mirage.doctor import host
from mirage.engine import kernels as absent
from mirage.engine import stack
from mirage.processors import BRAIN, BYTE, FLOAT, HALF, TABLE, Kernels, Linear, Processor
from tests import kinds

pytestmark = pytest.mark.engine

SIZES = (1, 8, 15, 16, 24, 64, 128, 512, 1000, 1024, 4096)
EXTENSIONS = {TABLE[kind].extension for kind in Processor}
BY_CALL = {
    "weight_packed_linear_cpu": Linear.SGL,
    "onednn_mm": Linear.ONEDNN,
    "zentorch_linear_unary": Linear.ZEN,
}


@pytest.fixture(params=kinds.FEATURES)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Row of the table for a class of processor, while torch and vLLM believe to be on such one."""
    kinds.become(request.param, monkeypatch.setattr)
    architecture = CpuArchEnum.ARM if request.param == "arm" else CpuArchEnum.X86
    monkeypatch.setattr(Platform, "get_cpu_architecture", classmethod(lambda cls: architecture))
    return TABLE[kinds.PROCESSORS[request.param]]


def module(weight: torch.Tensor) -> torch.nn.Module:
    made = torch.nn.Module()
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    made.bias = None
    return made


def dispatched(weight: torch.Tensor) -> torch.nn.Module:
    """A linear layer with the kernel that vLLM has chosen for it."""
    utils.dispatch_cpu_unquantized_gemm(made := module(weight), remove_weight=False)
    return made


def who(layer: Any) -> Linear | None:
    """Library whose function the layer calls; None for torch's ordinary product."""
    return next((BY_CALL[n] for n in layer.cpu_linear.__code__.co_names if n in BY_CALL), None)


@pytest.mark.parametrize("dtype", [BRAIN, HALF, FLOAT])
def test_small_matrices_are_sgls_where_vllm_says_so(kernels: Kernels, dtype: str) -> None:
    for rows, columns in product(SIZES, SIZES):
        theirs = utils.check_cpu_sgl_kernel(rows, columns, getattr(torch, dtype))
        ours = processors.linear(kernels, rows, columns, dtype)
        assert (ours is Linear.SGL) == theirs, (rows, columns)


def test_vllm_dispatches_linear_layers_as_the_table_says(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils.ops, "create_onednn_mm", lambda weight, size: None)
    # Which the extension of a processor without AVX-512 does not have.
    monkeypatch.setattr(torch.ops._C, "convert_weight_packed", torch.clone, raising=False)
    for rows, columns in ((64, 64), (24, 64), (1024, 1024)):
        made = dispatched(torch.zeros(rows, columns, dtype=torch.bfloat16))
        assert who(made) is processors.linear(kernels, rows, columns, BRAIN)
    monkeypatch.setattr(type(current_platform), "is_zen_cpu", lambda self: True)
    zen = SimpleNamespace(
        zentorch_linear_unary=None, zentorch_weight_prepack_for_linear=torch.clone
    )
    monkeypatch.setattr(torch.ops, "zentorch", zen, raising=False)
    made = dispatched(torch.zeros(64, 64, dtype=torch.bfloat16))
    assert who(made) is processors.linear(kernels, 64, 64, BRAIN, zen=True)


@pytest.mark.parametrize("zen", [False, True])
def test_linear_layers_that_move_keep_their_weights(
    kernels: Kernels, zen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if zen:
        monkeypatch.setattr(type(current_platform), "is_zen_cpu", lambda self: True)
        namespace = SimpleNamespace(zentorch_linear_unary=None)
        monkeypatch.setattr(torch.ops, "zentorch", namespace, raising=False)
    # Which the extension of a processor without AVX-512 does not have.
    monkeypatch.setattr(torch.ops._C, "convert_weight_packed", torch.clone, raising=False)
    for rows, columns, dtype in product((64, 8, 1024), (64, 40, 1024), (BRAIN, FLOAT)):
        made = module(weight := torch.ones(rows, columns, dtype=getattr(torch, dtype)))
        made.quant_method = UnquantizedLinearMethod()
        stack.keep_weights([made])
        made.quant_method.process_weights_after_loading(made)
        if processors.of_layers(kernels, rows, columns, dtype) is None:
            assert made.cpu_linear is torch.nn.functional.linear
            assert made.weight.data_ptr() == weight.data_ptr()
        else:
            assert who(made) is Linear.SGL and made.weight.shape == (1, rows, columns)
        assert made.weight.nbytes == weight.nbytes


def test_a_weight_that_something_else_reads_stays_plain(kernels: Kernels) -> None:
    """vLLM marks a projection of latent attention as read by other code. It is not packed, and uses
    torch's ordinary product.
    """
    made: Any = module(weight := torch.zeros(64, 64, dtype=torch.bfloat16))
    made.quant_method, made._cpu_skip_gemm_dispatch = UnquantizedLinearMethod(), True
    stack.keep_weights([made])
    made.quant_method.process_weights_after_loading(made)
    assert made.cpu_linear is torch.nn.functional.linear
    assert made.weight.data_ptr() == weight.data_ptr() and made.weight.dim() == 2


def test_int8_matrices_are_whose_vllm_says(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("process_weights_for_sgl", "process_weights_for_onednn"):
        monkeypatch.setattr(scaled_mm.CPUInt8ScaledMMLinearKernel, way, lambda self, layer: None)
    for rows, columns, symmetric in product(SIZES, SIZES, (True, False)):
        kernel: Any = object.__new__(scaled_mm.CPUInt8ScaledMMLinearKernel)
        kernel.config = SimpleNamespace(input_symmetric=symmetric)
        kernel.layer_param_names = ["weight", "", "", "", ""]
        layer = SimpleNamespace(weight=torch.zeros(rows, columns, dtype=torch.int8, device="meta"))
        kernel.process_weights_after_loading(layer)
        theirs = kernel.linear_method.__name__.rpartition("_")[2]
        ours = processors.int8(kernels, rows, columns, symmetric=symmetric)
        assert ours.lower() == theirs, (rows, columns, symmetric)
    assert (BYTE in kernels.tiles) == (BRAIN in kernels.tiles)


def test_attention_has_the_instructions_that_vllm_names(kernels: Kernels) -> None:
    for head, dtype, block in product((32, 64, 80, 112, 128), (BRAIN, FLOAT), (8, 16, 32, 48, 128)):
        theirs = cpu_attn._get_attn_isa(getattr(torch, dtype), block, head, "auto")
        assert processors.attention(kernels, head, dtype, block) == theirs, (head, dtype, block)


def test_a_kv_cache_of_eight_bits_is_read_where_vllm_says(kernels: Kernels) -> None:
    def read() -> str:
        return cpu_attn._get_attn_isa(torch.bfloat16, 32, 64, "fp8")

    if kernels.eight_bit_kv:
        assert read()
    else:
        with pytest.raises(NotImplementedError):
            read()


def test_latent_attention_and_experts_are_vllms_choice(kernels: Kernels) -> None:
    asked: Any = SimpleNamespace(use_sparse=False, use_mla=True, kv_cache_dtype="auto")
    backend = current_platform.get_attn_backend_cls(None, asked)
    assert backend.rpartition(".")[0].endswith(kernels.latent.lower())
    in_order: tuple[Any, ...] = (
        cpu_moe.X86CPUUnquantizedExperts,
        cpu_moe.ArmCPUUnquantizedExperts,
        cpu_moe.CPUUnquantizedExperts,
    )
    first = next(each for each in in_order if each._supports_current_device())
    assert first.isa == kernels.experts


def test_convolutions_are_packed_where_vllm_packs_them(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils.ops, "causal_conv1d_weight_pack", torch.clone, raising=False)
    made = dispatched(torch.zeros(64, 1, 4, dtype=torch.bfloat16))
    assert hasattr(made, "_cpu_unpacked_conv_weight") == kernels.packs_convolutions


def test_vllm_loads_the_extension_that_the_table_names(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: Callable[..., Any] = builtins.__import__
    wanted: list[str] = []

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.removeprefix("vllm.") in EXTENSIONS:
            wanted.append(name)
            return None
        return plain(name, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", importing)
        current_platform.import_kernels()
    assert wanted == [f"vllm.{kernels.extension}"]


@pytest.mark.slow
@pytest.mark.parametrize("extension", sorted(EXTENSIONS))
def test_an_extension_multiplies_by_four_bits_if_the_table_says_so(extension: str) -> None:
    (library,) = Path(vllm.__file__).parent.glob(f"{extension}.abi3.so")
    code = "import sys, torch; torch.ops.load_library(sys.argv[1])"
    code += "; print(hasattr(torch.ops._C, 'cpu_gemm_wna16'))"
    command = [sys.executable, "-c", code, str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        pytest.skip(f"this processor cannot load {extension}")
    assert done.returncode == 0, done.stderr
    said = done.stdout.strip()
    able = {row.four_bits for kind, row in TABLE.items() if row.extension == extension}
    assert able == {said == "True"}


@pytest.mark.parametrize("mine", ["avx512_bf16", "amx"])
def test_tiles_are_left_out_only_where_there_are_none(
    mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    monkeypatch.setattr(kinds, "here", lambda: mine)
    kinds.without_tiles(lambda owner, name, value: put.append(name))
    assert bool(put) == (mine != "amx")


def test_the_class_of_this_processor_is_the_one_that_torch_sees() -> None:
    kind = processors.class_of(platform.machine(), host._flags())
    ours = next(name for name, each in kinds.PROCESSORS.items() if each is kind)
    seen = tuple(getattr(torch.cpu, name)() for name in kinds.PREDICATES)
    assert seen[:3] == kinds.FEATURES[ours][:3]


@pytest.mark.parametrize(
    ("kernel", "needs"),
    [
        (scaled_mm.CPUFp8BlockScaledMMKernel, False),
        (scaled_mm.CPUFp8PerTensorScaledMMLinearKernel, True),
    ],
)
def test_eight_bit_weights_need_what_quantises_inputs_if_they_call_it(
    kernel: type, needs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent, "_takes_arguments", lambda operator: False)
    part: Any = object.__new__(kernel)
    part.quant_fp8 = None  # vLLM's base class makes it for each
    layer = torch.nn.Module()
    layer.quant_method = SimpleNamespace(kernel=part)
    assert bool(absent.missing(layer)) == needs
