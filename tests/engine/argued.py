"""Child process: engines from command lines, one after another; what they say as JSON lines.

python argued.py MODELS CASES OUT MODE FIRST   MODE: plain, or mirage

CASES is a JSON list of `{"engine_args": {...}}`, perhaps with "model" (a family), "batched" (tokens
of a step), kinds of requests ("sampled", "bound", "priority", "repeats"), or "unchecked": nobody
asks the table.
Case by case from FIRST on, a line `{"case", "outcome", "said"}` is written: `refused` before an
engine started, with one line; `text`, with the tokens and logprobs of each request; or `died`.
`mirage` judges a case as `mirage check` does, and moves memory at random while text is made.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from identity import BASE, UNIVERSE, Changes
from tiny import BLOCK_TOKENS, ENVIRONMENT, POISONING, make_model, prompts, scheduler_of

from mirage.arguments.check import ArgumentRefused, check_names, normalised
from mirage.config import Config
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.page_size import PageSize
from mirage.serve.launch.launcher import command, flags
from mirage.tools.demo.tokenizer import save_tokenizer
from tests.plain_kernels import like_ours, without_onednn

LENGTH, BATCHED = 512, 256
"""Tokens of the longest request, and of one step."""
SLOW_S = 250.0
"""Seconds after which a case says on stderr where it is."""
WHERE = "MODELS/"
"""In a case's values: the folder of models."""


def config_of(path: Path, engine_args: dict[str, Any], batched: int = BATCHED) -> Config:
    """Configuration of one tenant on a host device, as a file would have it."""
    tenant = {
        "name": "t",
        "model": str(path),
        "share": 50,
        "max_model_len": LENGTH,
        "max_num_seqs": 16,
        "max_num_batched_tokens": batched,
        "engine_args": engine_args,
    }
    device = {"memory": "1GiB", "page": 4096}
    return Config.model_validate(
        {"device": device, "tenants": [tenant], "block_tokens": BLOCK_TOKENS}
    )


def fit_of(path: Path) -> Fit:
    """Sizes of a tiny model. An engine without a controller uses only the number of blocks."""
    shape = json.loads((path / "config.json").read_text())
    heads = shape.get("num_key_value_heads", shape["num_attention_heads"])
    head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    block = 2 * 2 * heads * head * shape["num_hidden_layers"] * BLOCK_TOKENS
    layers = shape["num_hidden_layers"]
    return Fit(PageSize(1 << 16), 1 << 29, layers, 1, 1, block, 1, BASE, UNIVERSE, 17, layers)


def line_of(
    path: Path, engine_args: dict[str, Any], mode: str, batched: int = BATCHED
) -> list[str]:
    """Command line of vLLM's server: that of our launcher, or plain vLLM's with the same limits."""
    config = config_of(path, engine_args, batched)
    fit = fit_of(path)
    if mode == "mirage":
        return command(config, config.tenants[0], fit, Path("/none"), None)[3:]
    base: dict[str, Any] = {
        "model": str(path),
        "dtype": "bfloat16",
        "block_size": BLOCK_TOKENS,
        "max_model_len": LENGTH,
        "max_num_seqs": 16,
        "max_num_batched_tokens": batched,
        "num_gpu_blocks_override": UNIVERSE,
        "kv_cache_memory_bytes": 1 << 30,
        "enforce_eager": True,
    }
    given = normalised(engine_args)
    kept = {name: value for name, value in base.items() if name not in given}
    return [*flags(kept), *flags(given, joined=True)]


def configured(words: list[str], mode: str, judged: bool = False) -> tuple[Any, bool]:
    """vLLM's configuration for a command line, and True if it logs no statistics.

    Raises `ArgumentRefused` for what vLLM would refuse, and with `judged` for what `mirage check`
    would.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    from mirage.engine.arguments import parse, verify

    args = parse(words)
    if mode == "mirage":
        args.worker_cls = POISONING
    try:
        made = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    except Exception as error:
        raise ArgumentRefused(f"vLLM: {' '.join(str(error).split())[:300]}") from None
    if judged and (why := verify(made)):
        raise ArgumentRefused(f"verify: {why}")
    return made, args.disable_log_stats


def requests(case: dict[str, Any], engine: Any, seed: int, count: int) -> None:
    """Add greedy requests of growing length to `engine`; the case may ask for one sampled request
    and one bound to a grammar.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    common = {"max_tokens": 32, "ignore_eos": True, "logprobs": 3}
    for i, tokens in enumerate(prompts(count, 40, seed)):
        if case.get("repeats"):
            tokens = (tokens[:7] * 20)[: len(tokens)]
        more: dict[str, Any] = {"temperature": 0, "detokenize": False}
        if case.get("sampled") and i == 2:
            more = {"temperature": 0.9, "top_p": 0.9, "detokenize": False}
        if case.get("bound") and i == 3:
            bound = StructuredOutputsParams(regex="[ab]{6,9}c")
            more = {"temperature": 0, "structured_outputs": bound, "ignore_eos": False}
        params = SamplingParams(**(common | more))
        priority = (i * 7) % 3 if case.get("priority") else 0
        engine.add_request(str(i), {"prompt_token_ids": tokens}, params, priority=priority)


def generated(
    case: dict[str, Any], engine: Any, before_step: Callable[[int], None], rounds: int
) -> list[Any]:
    """Answers of each round of requests, in order. The third round repeats the first, with prefixes
    in the cache.
    """
    import torch

    said = []
    for seed in [1, 2, 1][:rounds]:
        torch.manual_seed(seed)
        requests(case, engine, seed, 6)
        done: dict[str, Any] = {}
        step = 0
        while engine.has_unfinished_requests():
            before_step(step)
            for out in engine.step():
                if out.finished:
                    done[out.request_id.split("-")[0]] = out.outputs[0]
            step += 1
        said.append([_plain(done[str(i)]) for i in range(len(done))])
    return said


def _plain(output: Any) -> list[Any]:
    probable = [sorted((t, lp.logprob) for t, lp in d.items()) for d in output.logprobs or []]
    return [list(output.token_ids), probable]


def outcome(case: dict[str, Any], models: Path, mode: str) -> tuple[str, Any]:
    """Kind of outcome of one case, and its message or texts."""
    from vllm.v1.engine.llm_engine import LLMEngine

    path = make_model(case.get("model", "llama"), models)
    if not (path / "tokenizer.json").exists():
        save_tokenizer(path, LENGTH)
    given = json.loads(json.dumps(case["engine_args"]).replace(WHERE, f"{models}/"))
    try:
        judged = mode == "mirage" and not case.get("unchecked")
        if judged:
            check_names(given)
        config, quiet = configured(
            line_of(path, given, mode, case.get("batched", BATCHED)), mode, judged
        )
    except ArgumentRefused as error:
        return "refused", str(error)
    engine = None
    try:
        with like_ours() if mode == "plain" else nullcontext():
            engine = LLMEngine.from_vllm_config(config, disable_log_stats=quiet)
        changes: Callable[[int], None] = lambda step: None  # noqa: E731
        if mode == "mirage":
            changes = Changes(scheduler_of(SimpleNamespace(llm_engine=engine)), seed=5)
        said = {"rounds": generated(case, engine, changes, case.get("rounds", 2))}
        if isinstance(changes, Changes):
            said["moved"] = [max(changes.remapped_counts), changes.grown, changes.shrunk]
        if not quiet:
            said["drafts"] = _drafts(engine)
    except BaseException as error:
        return "died", "".join(traceback.format_exception(error))[-1500:]
    finally:
        if engine is not None:
            engine.engine_core.shutdown()
    return "text", said


def _drafts(engine: Any) -> list[int]:
    """Number of drafted tokens, and of accepted ones."""
    counts = {
        m.name: int(m.value)
        for m in engine.get_metrics()
        if "spec_decode" in m.name and hasattr(m, "value")
    }
    names = ("draft_tokens", "accepted_tokens")
    return [counts.get(f"vllm:spec_decode_num_{name}", 0) for name in names]


def main(models: Path, cases: Path, out: Path, mode: str, first: int) -> None:
    without_onednn()
    for number, case in enumerate(json.loads(cases.read_text())):
        if number < first:
            continue
        faulthandler.dump_traceback_later(SLOW_S)
        kind, said = outcome(case, models, mode)
        with out.open("a") as lines:
            lines.write(json.dumps({"case": number, "outcome": kind, "said": said}) + "\n")
        gc.collect()


if __name__ == "__main__":
    assert ENVIRONMENT
    models, cases, out = map(Path, sys.argv[1:4])
    main(models, cases, out, sys.argv[4], int(sys.argv[5]))
