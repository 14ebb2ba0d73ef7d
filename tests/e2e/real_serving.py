"""Two pretrained models behind `mirage serve` on a nearly full device, and plain vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from plain_vllm import Plain, plain
from questions import Server
from supervised import Served, serving

from tests.real.chats import body
from tests.real.judging import Said, said
from tests.real.models import GEMMA, NAMES, SMOLLM, folders

START_S, ANSWER_S = 600, 1500
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
KV_ITEMS = {SMOLLM: 2 * 30 * 3 * 64, GEMMA: 2 * 18 * 1 * 256}
"""Numbers in the keys and values of one token, over all layers and heads."""
ROTARY_ITEMS = {SMOLLM: 8192 * 64, GEMMA: 2 * 32768 * 256}
"""Numbers in the tables by position beside the parameters; Gemma has one per kind of layer."""
PAGES_BYTES = 4 << 20
"""Bytes, more than a tenant's share loses where layers and extents end within a page."""
HOST_MIB = 3000
"""MiB of the host pool: the KV cache of all chats of both models fits."""
ARGUMENTS: dict[str, Any] = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    "logprobs_mode": "processed_logprobs",
}
"""Arguments of both models; log-probabilities are those after penalties, which decide."""
BLOCKS = {SMOLLM: 700, GEMMA: 3200}
"""KV blocks of a plain server: enough that it preempts no request."""


def limits(context: int) -> dict[str, int]:
    return {"max_model_len": context, "max_num_seqs": 32, "max_num_batched_tokens": 512}


def needed(model: str, dtype: str, context: int) -> int:
    """Bytes that a tenant needs in `dtype`: its parameters, and KV cache for 1.25 requests of
    `context` tokens. Parameters take two bytes each in the file.
    """
    weights = (folders()[model] / "model.safetensors").stat().st_size // 2
    items = weights + ROTARY_ITEMS[model] + KV_ITEMS[model] * context * 5 // 4
    return ITEM_BYTES[dtype] * items + PAGES_BYTES


def write_config(folder: Path, dtype: str, context: int) -> Path:
    """Write a configuration of both models with requests of at most `context` tokens, on a device
    that holds little more than these need.
    """
    needs = {name: needed(name, dtype, context) for name in NAMES}
    memory = sum(needs.values())
    # A little less than all, or rounding makes it more.
    tenants = [
        {"name": name, "model": str(path), "share": 99.99 * needs[name] / memory}
        | {"engine_args": ARGUMENTS, **limits(context)}
        for name, path in folders().items()
    ]
    content = {
        "device": {"memory": memory},
        "dtype": dtype,
        "tenants": tenants,
        "tiers": {"host": {"bytes": f"{HOST_MIB}MiB"}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@contextmanager
def served_both(folder: Path, dtype: str, context: int) -> Iterator[Served]:
    config = write_config(folder, dtype, context)
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        served.patience_s = ANSWER_S
        yield served


@contextmanager
def plain_both(dtype: str, context: int) -> Iterator[dict[str, Plain]]:
    same = ARGUMENTS | limits(context) | {"dtype": dtype}
    arguments = {name: same | {"num_gpu_blocks_override": BLOCKS[name]} for name in NAMES}
    with plain(folders(), **arguments) as servers:
        for server in servers.values():
            server.patience_s = ANSWER_S
        yield servers


def ask(
    server: Server, model: str, topics: Sequence[str], before: Sequence[Sequence[str]], tokens: int
) -> list[Said]:
    """Send one turn of all chats of a model at once; `before` has each chat's earlier answers."""
    turns = [body(model, topic, old, tokens) for topic, old in zip(topics, before, strict=True)]

    def one(turn: tuple[str, Any]) -> Said:
        status, answer = server.request("POST", *turn)
        assert status == 200, answer
        return said(answer["choices"][0])

    with ThreadPoolExecutor(len(turns)) as pool:
        return list(pool.map(one, turns))


def ask_both(
    servers: Mapping[str, Server],
    topics: Sequence[str],
    before: Mapping[str, Sequence[Sequence[str]]],
    tokens: int,
) -> dict[str, list[Said]]:
    """Call `ask` for both models at once."""
    with ThreadPoolExecutor(len(NAMES)) as pool:
        asked = {
            name: pool.submit(ask, servers[name], name, topics, before[name], tokens)
            for name in NAMES
        }
        return {name: answers.result() for name, answers in asked.items()}


def histories(turns: Sequence[Mapping[str, Sequence[Said]]], chats: int) -> dict[str, Any]:
    """Answers of each chat so far: by model, a list for each chat."""
    return {
        name: [[turn[name][chat].text for turn in turns] for chat in range(chats)] for name in NAMES
    }


def most(served: Served, key: str) -> dict[str, int]:
    """Largest value of a field in the timeline's samples, by tenant."""
    samples = served.timeline()["samples"]
    return {
        name: max(s["tenants"][name][key] for s in samples if name in s["tenants"])
        for name in NAMES
    }
