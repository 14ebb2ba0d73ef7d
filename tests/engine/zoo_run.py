"""Child process: families of the zoo one after the other in a mode; one JSON line for each.

python zoo_run.py MODELS OUT MODE FAMILY...

MODE is one of `tier_storms.MODES` or of `identity.MODES`; with `-async` two steps are in flight, as
on a GPU. A family that fails is the last of this process, because what it leaves in vLLM could
spoil the next one.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import tier_storms
import torch
from deferred import schedule_asynchronously
from identity import MODES, arguments_of, observe
from tiny import make_llm, prompts, run, scheduler_of, step_through

from mirage.engine.unadapted import stay_unadapted
from tests import kinds
from tests.zoo import FAMILIES, Family, companions, make, pictures

ASYNCHRONOUS = "-async"
UNIMPORTABLE = "failed to be inspected"
"""vLLM's word for a model class that it could not import."""
BLOCKS = 512
"""KV blocks in all: no prefix of three rounds is evicted, with several groups either."""
TOKENS = 40
"""Generated per prompt."""
TEXTS = {"generate": 6, "embed": 24, "score": 24}
"""Prompts in a round: enough steps for some changes."""


def prove(family: Family, folder: Path, mode: str) -> dict[str, Any]:
    """Outputs and facts of a family in a mode. Its rounds of prompts repeat; pooling models, whose
    prompts are a step each, have more rounds, and over a slow link there is one.
    """
    settings = MODES[mode]
    if family.arguments.get("enable_lora") and settings is None:
        stay_unadapted()  # plain vLLM is wrong there, see test_unadapted.py
    path = make(family, folder)
    llm = make_llm(path, blocks=BLOCKS, **arguments_of(mode), **family.all_arguments(path))
    throttled = "copy_bytes_per_s" in (settings or {})
    rounds = (1, 2, 1) if family.task == "generate" else (1, 2, 1, 2, 1, 2, 1)
    about = describe(llm)
    facts = observe(
        llm,
        mode,
        lambda seed, change: outputs(llm, family, path, seed, change),
        seeds=(1,) if throttled else rounds,
        chance=len(family.name),
    )
    return facts | about


def outputs(llm: Any, family: Family, path: Path, seed: int, change: Any) -> Any:
    """Outputs that must be equal: tokens and logprobs, or pooled vectors."""
    batch: list[Any] = prompts(TEXTS[family.task], 40, seed)
    if family.name in pictures.PROCESSORS:
        batch = pictures.prompts(family, batch, seed)
    if family.task == "generate":
        adapters = companions.requests(path) if family.arguments.get("enable_lora") else ()
        return run(llm, batch, TOKENS, change, adapters=adapters)
    from vllm import PoolingParams

    params = PoolingParams(task="embed" if family.task == "embed" else "classify")
    return [out.outputs.data.tolist() for out in step_through(llm, batch, params, change)]


def describe(llm: Any) -> dict[str, Any]:
    """Facts of the model that vLLM built: its class, and its KV cache."""
    config = llm.llm_engine.vllm_config
    core = llm.llm_engine.engine_core.engine_core
    scheduler = scheduler_of(llm)
    groups = scheduler.kv_cache_config.kv_cache_groups
    model = core.model_executor.driver_worker.worker.model_runner.get_model()
    facts = {
        "architecture": config.model_config.hf_config.architectures[0],
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "extension": kinds.extension(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "quantisation": config.model_config.quantization or "",
        "kv": bool(groups),
        "asynchronous": config.scheduler_config.async_scheduling,
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "block_tokens": config.cache_config.block_size,
        "groups": [
            {
                "kind": type(g.kv_cache_spec).__name__,
                "layers": len(g.layer_names),
                "block_tokens": g.kv_cache_spec.block_size,
                "page_bytes": g.kv_cache_spec.page_size_bytes,
            }
            for g in groups
        ],
    }
    shape = getattr(scheduler, "shape", None)
    if shape is not None:
        facts["shape"] = {field: getattr(shape, field) for field in shape.__struct_fields__}
        facts["layers"] = getattr(shape, "movable_layers", shape.layers)
    return facts


def failure(error: Exception, family: Family, folder: Path) -> dict[str, Any]:
    """Root error of a family that failed, in a line or two, and its architecture."""
    config = folder / family.name / "config.json"
    known = json.loads(config.read_text())["architectures"] if config.exists() else [""]
    text = cause(error)
    if UNIMPORTABLE in text:
        text = importing(known[0]) or text
    return {"failed": text, "architecture": known[0]}


def cause(error: BaseException) -> str:
    """Text of the root error; of a refused configuration only what was refused."""
    while error.__cause__ or (error.__context__ and not error.__suppress_context__):
        error = error.__cause__ or error.__context__
    text = f"{type(error).__name__}: {error}"
    if "Value error, " in text:
        text = text.partition("Value error, ")[2].partition(" [type=value_error")[0]
    return text[:300]


def importing(architecture: str) -> str | None:
    """Reason why vLLM's class of this name cannot be imported, from an import in a new process;
    None if it can.
    """
    from vllm.model_executor.models import registry

    module = f"vllm.model_executor.models.{registry._VLLM_MODELS[architecture][0]}"
    command = [sys.executable, "-c", f"import {module}"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return tried.stderr.strip().splitlines()[-1][:300] if tried.returncode else None


def main(models: Path, out: Path, mode: str, names: list[str]) -> None:
    mode, asynchronous = mode.removesuffix(ASYNCHRONOUS), mode.endswith(ASYNCHRONOUS)
    if asynchronous:
        schedule_asynchronously()
    for name in names:
        began = time.monotonic()
        try:
            one = tier_storms.prove if mode in tier_storms.MODES else prove
            facts = one(FAMILIES[name], models, mode)
        except Exception as error:
            traceback.print_exc()
            facts = failure(error, FAMILIES[name], models)
        facts["seconds"] = round(time.monotonic() - began, 1)
        with out.open("a") as file:
            file.write(json.dumps({"family": name} | facts) + "\n")
        if "failed" in facts:
            break
        gc.collect()


if __name__ == "__main__":
    where, result, how, *which = sys.argv[1:]
    main(Path(where), Path(result), how, which)
