"""First step of an engine: a request of its own, computed before its tenant is ready, which shows
that its model computes.

A model may load, and its kernels refuse the first real step. So the scheduler begins with a prompt
of a few tokens, which goes its usual way (turn, KV blocks, prefill, decode or pooling) whatever the
policy and the runner. It is made here and not sent to the API server, where keys, templates,
tokenizers and each runner's routes would be in its way. Its output is sent to no client and counted
nowhere, and no prompt can find its KV blocks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.tasks import POOLING_TASKS
from vllm.v1.request import Request

NAME = "mirage-first-step"
PROMPT, ANSWER = 4, 2
"""Tokens of the prompt and of the answer, fewer if the model takes no more: a prefill and a
decode."""


class FirstStep:
    """Engine's own first request, which shows that its model computes."""

    def __init__(self, vllm_config: Any, tasks: Collection[str], hash_tokens: int) -> None:
        """Make the request. `tasks` are those of the model; `hash_tokens` is the number of tokens
        in a named KV block."""
        model = vllm_config.model_config
        length = max(1, min(PROMPT, model.max_model_len - ANSWER))
        named = set(special_tokens(model.hf_config.to_dict()))
        pooling = _pooling(model, tasks) if model.runner_type == "pooling" else None
        writing = SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True)
        self.request = Request(
            request_id=NAME,
            prompt_token_ids=plain_tokens(named, model.get_vocab_size(), length),
            sampling_params=None if pooling else writing,
            pooling_params=pooling,
            block_hasher=lambda request: _names(request, hash_tokens),
        )

    def processed(self, outputs: Mapping[int, Any]) -> bool:
        """Remove its part from a step's outputs, vLLM's by client; True if the request has
        ended."""
        for output in outputs.values():
            output.outputs = [each for each in output.outputs if each.request_id != NAME]
        return bool(self.request.is_finished())


def lacks_input(model: Any) -> str | None:
    """Return the reason why a model with this configuration cannot compute on token ids alone; None
    if it can."""
    if model.is_encoder_decoder:
        return "its decoder needs what an encoder has seen or heard"
    if model.is_multimodal_raw_input_only_model:
        return "it takes no tokens"
    return None


def special_tokens(config: Mapping[Any, Any]) -> Iterator[int]:
    """Yield the token ids to which a model's configuration gives a meaning, such as a picture's
    place. The first step's prompt avoids them."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from special_tokens(value)
        elif "token" in str(name):
            yield from (each for each in _listed(value) if isinstance(each, int))


def plain_tokens(special: Collection[int], vocabulary: int, length: int) -> list[int]:
    """Return the first `length` ids that are not special; if there are too few, any ids follow."""
    plain = [token for token in range(vocabulary) if token not in special]
    return (plain + list(range(vocabulary)) * length)[:length]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pooling(model: Any, tasks: Collection[str]) -> PoolingParams:
    params = PoolingParams(task=min(set(tasks) & set(POOLING_TASKS)))
    params.verify(model)
    return params


def _names(request: Request, tokens: int) -> list[bytes]:
    """Return random names for its full blocks of `tokens` tokens that have none, so that no prompt
    finds them."""
    lacking = request.num_tokens // tokens - len(request.block_hashes)
    return [os.urandom(32) for _ in range(lacking)]
