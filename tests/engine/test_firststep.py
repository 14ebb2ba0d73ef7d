"""The request that an engine computes by itself before it serves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from no_device import made, step
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from mirage.engine import scheduler
from mirage.engine.firststep import (
    ANSWER,
    NAME,
    PATHS,
    PROMPT,
    FirstStep,
    lacks_input,
    plain_tokens,
    special_tokens,
)
from mirage.protocol import Hello, Report, Stepped

pytestmark = pytest.mark.engine


def config(runner: str = "generate", length: int = 64, **names: Any) -> Any:
    hf = SimpleNamespace(to_dict=lambda: names)
    model = SimpleNamespace(
        runner_type=runner,
        max_model_len=length,
        hf_config=hf,
        get_vocab_size=lambda: 32,
        pooler_config=None,
    )
    return SimpleNamespace(model_config=model)


def test_special_tokens_are_found_wherever_a_configuration_names_them() -> None:
    named = {
        "pad_token_id": 0,
        "eos_token_id": [1, 2],
        "tokenizer_class": "LlamaTokenizer",
        "sep_token_id": None,
        "id2label": {9: "LABEL_9"},
        "text_config": {"image_token_index": 3, "num_hidden_layers": 7},
    }
    assert set(special_tokens(named)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("special", "vocabulary", "tokens"),
    [
        (set(), 32, [0, 1, 2, 3]),
        ({0, 1, 3}, 32, [2, 4, 5, 6]),
        ({0, 1}, 3, [2, 0, 1, 2]),
        ({0}, 1, [0, 0, 0, 0]),
    ],
)
def test_a_prompt_is_of_tokens_without_a_meaning(
    special: set[int], vocabulary: int, tokens: list[int]
) -> None:
    assert plain_tokens(special, vocabulary, 4) == tokens


@pytest.mark.parametrize(("length", "prompt"), [(64, PROMPT), (5, 3), (2, 1), (1, 1)])
def test_a_prompt_leaves_room_for_its_answer(length: int, prompt: int) -> None:
    for request in FirstStep(config(length=length, bos_token_id=0), (), 16).requests:
        assert (request.num_prompt_tokens, request.max_tokens) == (prompt, ANSWER)
        assert 0 not in request.all_token_ids
        assert request.block_hashes == []


def test_each_path_through_the_sampler_is_taken() -> None:
    requests = FirstStep(config(), (), 16).requests
    assert [request.request_id for request in requests] == [f"{NAME}-{path}" for path in PATHS]
    assert [request.sampling_params.logprobs for request in requests] == [None, 1]


def test_a_pooling_model_is_asked_for_one_of_its_tasks() -> None:
    (request,) = FirstStep(config("pooling"), ("generate", "token_embed", "embed"), 16).requests
    assert request.sampling_params is None
    assert request.pooling_params is not None
    assert request.pooling_params.task == "embed"


def test_full_blocks_are_named_as_no_prompt_names_them() -> None:
    """Two first-step requests have blocks of one token. No two blocks have the same hash, so none
    can be found in the cache.
    """
    one, other = FirstStep(config(), (), 1).requests
    assert len(set(one.block_hashes) | set(other.block_hashes)) == 2 * PROMPT
    one.append_output_token_ids(7)
    assert len(one.block_hashes) == PROMPT + 1


def test_its_output_goes_to_nobody_and_its_end_is_noticed() -> None:
    first = FirstStep(config(), (), 16)
    own = [request.request_id for request in first.requests]
    outputs = [EngineCoreOutput(name, [7]) for name in (*own, "of a user")]
    step = {0: EngineCoreOutputs(outputs=outputs)}
    assert not first.processed(step)
    assert [output.request_id for output in step[0].outputs] == ["of a user"]
    for request in first.requests:
        assert not first.processed({})
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    assert first.processed({})


@pytest.mark.parametrize(
    ("encoder", "raw", "lacks"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_models_that_take_more_than_tokens(encoder: bool, raw: bool, lacks: bool) -> None:
    model = SimpleNamespace(is_encoder_decoder=encoder, is_multimodal_raw_input_only_model=raw)
    assert (lacks_input(model) is not None) == lacks


def test_a_scheduler_begins_with_it_and_says_when_it_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = made(tmp_path, monkeypatch, first_step=True)
    assert [type(m) for m in core.agent.said] == [Hello]
    assert core.get_request_counts() == (0, len(PATHS)) and not core.worker.warm
    assert core.signs.pulse().requests == 0, "vLLM's loop has not begun"
    for steps in range(ANSWER):
        assert Stepped() not in core.agent.said, f"after {steps} steps"
        outputs = step(core)
        assert all(not output.outputs for output in outputs.values())
    assert core.agent.said.count(Stepped()) == 1 and core.worker.warm
    assert not core.has_unfinished_requests()
    pool = core.kv_cache_manager.block_pool
    assert len(pool.cached_block_hash_to_block) == 0
    assert pool.get_num_free_blocks() == 63
    report = core.report()
    assert (report.steps, report.tokens, report.prefill_tokens, report.running) == (0, 0, 0, 0)
    assert all(m.steps == 0 for m in core.agent.said if isinstance(m, Report))

    core.add_request(FirstStep(core.vllm_config, (), 32).requests[0])  # as others, from now on
    assert [len(o.outputs) for o in step(core).values()] == [1]
    assert (core.report().steps, core.report().tokens) == (1, PROMPT)
    assert core.agent.said.count(Stepped()) == 1


def test_a_model_that_takes_more_than_tokens_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "lacks_input", lambda model: "it takes no tokens")
    core = made(tmp_path, monkeypatch, first_step=True)
    assert core.agent.said[1:] == [Stepped()]
    assert core.first is None and core.worker.warm and not core.has_requests()
