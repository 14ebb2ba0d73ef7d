"""vLLM's call of a layer's experts as an operator of ours, at which graphs are split.

The experts that a step needs are known only inside it. Code of ours that waits for them can only
run between two graphs. vLLM's own operators (`moe_forward`, `moe_forward_shared`) return new
tensors: a captured graph after such an operator would read the address that its output had when it
was captured. Ours writes into tensors that the graph before it has allocated, as vLLM's operator of
attention does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.library import Library
from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.config import CompilationConfig
from vllm.forward_context import in_piecewise_cudagraph
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner, get_layer_from_name
from vllm.utils.torch_utils import LayerNameType, _resolve_layer_name, direct_register_custom_op

LIBRARY = Library("mirage", "FRAGMENT")  # type: ignore[no-untyped-call]
OPERATOR = "mirage::moe_forward"
UNSPLIT = (
    "experts are called inside of a captured piece, which could not wait for those that are away"
)


def runner_of(layer: torch.nn.Module, experts: torch.nn.Module) -> MoERunner | None:
    """Return the runner that calls `experts` in `layer`; None if it is not vLLM's usual one."""
    runners = (m for m in layer.modules() if isinstance(m, MoERunner))
    for runner in runners:
        if runner.routed_experts is experts:
            return runner if type(runner).forward is MoERunner.forward else None
    return None


def split(runners: Iterable[MoERunner], compilation: CompilationConfig) -> None:
    """Let each runner call its experts by our operator, and let vLLM split compiled steps at that
    operator."""
    for runner in runners:
        runner._forward_entry = _routed if runner.shared_experts is None else _shared_and_routed
    if compilation.splitting_ops is not None and OPERATOR not in compilation.splitting_ops:
        compilation.splitting_ops.append(OPERATOR)


def captured(device: torch.device) -> bool:
    """True while the graph of a whole step is captured, which only runs with all experts on the
    device.

    Raise `RuntimeError` in a capture of a piece, since that graph would run while experts are away.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return False
    if in_piecewise_cudagraph():
        raise RuntimeError(UNSPLIT)
    return True


def _routed(
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    shared_experts_input: torch.Tensor | None,
    input_ids: torch.Tensor | None,
    layer_name: Any,
    hidden_dim_unpadded: int,
) -> torch.Tensor:
    """Return the output of the experts, (tokens, hidden), as vLLM's `moe_forward` does."""
    output = torch.empty_like(hidden_states)
    torch.ops.mirage.moe_forward(
        output, None, hidden_states, router_logits, shared_experts_input, input_ids, layer_name
    )
    return output


def _shared_and_routed(
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    shared_experts_input: torch.Tensor | None,
    input_ids: torch.Tensor | None,
    layer_name: Any,
    hidden_dim_unpadded: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of the shared experts and of the others, as vLLM's `moe_forward_shared`
    does."""
    output = torch.empty_like(hidden_states)
    like = hidden_states if shared_experts_input is None else shared_experts_input
    shared = torch.empty_like(like)
    torch.ops.mirage.moe_forward(
        output, shared, hidden_states, router_logits, shared_experts_input, input_ids, layer_name
    )
    return shared, output


def _computed(
    output: torch.Tensor, shared: torch.Tensor | None, layer_name: Any, *inputs: torch.Tensor | None
) -> None:
    found = get_layer_from_name(_resolve_layer_name(layer_name))._forward_impl(*inputs)
    if shared is None:
        output.copy_(found)
    else:
        shared.copy_(found[0])
        output.copy_(found[1])


_between_graphs = eager_break_during_capture(_computed)
"""Our operator's function, at which vLLM interrupts a capture if no step is compiled."""


def _moe_forward(
    output: torch.Tensor,
    shared_output: torch.Tensor | None,
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    shared_experts_input: torch.Tensor | None,
    input_ids: torch.Tensor | None,
    layer_name: LayerNameType,
) -> None:
    inputs = hidden_states, router_logits, shared_experts_input, input_ids
    _between_graphs(output, shared_output, layer_name, *inputs)


def _fake(
    output: torch.Tensor,
    shared_output: torch.Tensor | None,
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    shared_experts_input: torch.Tensor | None,
    input_ids: torch.Tensor | None,
    layer_name: LayerNameType,
) -> None:
    """Shape function of the operator: it returns nothing, its outputs exist already."""


direct_register_custom_op(
    op_name=OPERATOR.partition("::")[2],
    op_func=_moe_forward,
    mutates_args=["output", "shared_output", "hidden_states"],
    fake_impl=_fake,
    target_lib=LIBRARY,
)
