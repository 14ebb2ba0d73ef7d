"""First step of an engine: requests that the engine makes itself before its tenant is ready, to
show that its model can compute a step.

A model may load, and its kernels refuse the first real step. So the scheduler begins with a prompt
of a few tokens, which goes its usual way (turn, KV blocks, prefill, decode or pooling) whatever the
policy and the runner. There is one request for each of `PATHS`: kernels that only some requests
need are compiled now, and not in a step for which clients wait. They are made here and not sent to
the API server, where keys, templates, tokenizers and each runner's routes would be in their way.
Their output is sent to no client and counted nowhere, and no prompt can find their KV blocks.
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
PATHS: dict[str, dict[str, Any]] = {"greedy": {}, "logprobs": {"logprobs": 1}}
"""Ways through vLLM's sampler, by name: settings of the requests that take them. What vLLM warms up
itself is left out, and what compiles nothing (on a CPU all other settings, docs/results.md)."""


class FirstStep:
    """Requests that an engine makes itself before its tenant is ready, to show that its model can
    compute a step."""

    def __init__(self, vllm_config: Any, tasks: Collection[str], hash_tokens: int) -> None:
        """Make the requests. `tasks` are those of the model; `hash_tokens` is the number of tokens
        in a KV block that vLLM names by a hash."""
        model = vllm_config.model_config
        length = max(1, min(PROMPT, model.max_model_len - ANSWER))
        named = set(special_tokens(model.hf_config.to_dict()))
        pooling = _pooling(model, tasks) if model.runner_type == "pooling" else None
        usual = {"max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        self.requests = [
            Request(
                request_id=f"{NAME}-{path}",
                prompt_token_ids=plain_tokens(named, model.get_vocab_size(), length),
                sampling_params=None if pooling else SamplingParams(**(usual | settings)),
                pooling_params=pooling,
                block_hasher=lambda request: _names(request, hash_tokens),
            )
            for path, settings in ({"pooling": {}} if pooling else PATHS).items()
        ]
        self._names = {request.request_id for request in self.requests}

    def processed(self, outputs: Mapping[int, Any]) -> bool:
        """Remove the outputs of the engine's own `requests` from `outputs`, in place, so that no
        client gets them. `outputs` has the outputs of one step, by the number of the client. True
        if all requests in `requests` have ended.
        """
        for output in outputs.values():
            output.outputs = [each for each in output.outputs if each.request_id not in self._names]
        return all(request.is_finished() for request in self.requests)


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
    """Return random names for the request's full blocks of `tokens` tokens that have no name yet.
    With random names the prefix cache finds these blocks for no other prompt."""
    lacking = request.num_tokens // tokens - len(request.block_hashes)
    return [os.urandom(32) for _ in range(lacking)]
