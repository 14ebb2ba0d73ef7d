"""Folders and adapters with which vLLM would fail after the start are refused before it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing import ROOT, answers, question
from safetensors.numpy import load_file, save_file
from tiny import ENVIRONMENT

from mirage.tools.demo.models import make_models

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from lora_folder import make_adapter

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Tensors = dict[str, np.ndarray]
WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"


def rewritten(file: str, change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    """Function that changes the tensors in `file` of a folder."""

    def rewrite(folder: Path) -> None:
        save_file(change(load_file(folder / file)), folder / file, metadata={"format": "pt"})

    return rewrite


def said(file: str, **fields: Any) -> Callable[[Path], None]:
    """Function that sets fields in a JSON file of a folder, which it creates if needed."""

    def say(folder: Path) -> None:
        path = folder / file
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | fields))

    return say


def without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda found: {n: v for n, v in found.items() if not any(p in n for p in parts)}


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda found: {name.replace(old, new): value for name, value in found.items()}


def cut(part: str, *rows: slice) -> Callable[[Tensors], Tensors]:
    """Function that cuts tensors with `part` in their names down to `rows`."""
    return lambda found: {
        name: np.ascontiguousarray(value[rows]) if part in name else value
        for name, value in found.items()
    }


def more_tokens(folder: Path) -> None:
    """Add tokens for all rows of the embedding, and one more than it has rows."""
    path = folder / "tokenizer.json"
    known = json.loads(path.read_text())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    known["added_tokens"] += [
        {"id": number, "content": f"<|extra_{number}|>", "special": True} | plain
        for number in range(259, 321)
    ]
    path.write_text(json.dumps(known))


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


def as_folder_of(file: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_text(content) and None


MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "whole": (lambda folder: None, ""),
    "lacks a layer": (rewritten(WEIGHTS, without("layers.1.")), "its files lack"),
    "lacks a matrix": (rewritten(WEIGHTS, without("layers.1.mlp.down_proj")), "its files lack 1"),
    "lacks the embedding": (rewritten(WEIGHTS, without("embed_tokens")), "its files lack 1"),
    "has another layer": (rewritten(WEIGHTS, renamed("layers.1.", "layers.7.")), "layers.7."),
    "is narrower": (said("config.json", hidden_size=128), "does not fit the model"),
    "knows more tokens": (
        more_tokens,
        "beyond the 320 rows of its embedding (1 of them, such as 320 '<|extra_320|>'): remove",
    ),
    "has no tokenizer": (no_tokenizer, "vLLM cannot load the tokenizer in "),
    "has an odd vocabulary": (
        said("tokenizer.json", model={"type": "BPE", "vocab": {"a": "b"}, "merges": []}),
        "vLLM cannot load the tokenizer in ",
    ),
    "has an odd template": (
        said("tokenizer_config.json", chat_template="{% for m in %}"),
        "its chat template is not valid Jinja: ",
    ),
    "has an odd template file": (
        as_folder_of("chat_template.jinja", "{{ messages[ }}"),
        "its chat template is not valid Jinja: ",
    ),
    "is too hot": (said("generation_config.json", temperature=7.0), "temperature"),
    "is of no family": (said("config.json", model_type="lama", architectures=["Lama"]), "lama"),
    "has no heads": (said("config.json", num_attention_heads=0), "vLLM refuses it"),
}

ADAPTERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "good": (lambda folder: None, ""),
    "of another model": (
        rewritten(ADAPTER, renamed(".model.layers.", ".model.language_model.layers.")),
        "none of its modules applies to the model, 'model.language_model.layers.0",
    ),
    "deeper": (
        rewritten(ADAPTER, renamed("layers.1.", "layers.9.")),
        "2 of its modules are not in the model, such as 'model.layers.9.",
    ),
    "narrower": (rewritten(ADAPTER, cut("lora_A", slice(None), slice(64))), "wide in the model"),
    "halved": (
        rewritten(ADAPTER, without("layers.0.self_attn.q_proj.lora_B")),
        "has lora_A and no lora_B",
    ),
    "of another rank": (said("adapter_config.json", r=2), "is of rank 4, adapter_config.json says"),
    "for no module": (
        rewritten(ADAPTER, renamed("q_proj", "query")),
        "vLLM cannot load it: ",
    ),
    "with a bias": (said("adapter_config.json", bias="lora_only"), "Adapter bias"),
    "with DoRA": (said("adapter_config.json", use_dora=True), "does not yet support DoRA"),
    "with ranks": (said("adapter_config.json", rank_pattern={"q_proj": 64}), "rank 64 is greater"),
    "with a head": (said("adapter_config.json", modules_to_save=["lm_head"]), "modules_to_save"),
    "without weights": (lambda folder: (folder / ADAPTER).unlink(), "doesn't contain tensors"),
    "with alpha null": (said("adapter_config.json", lora_alpha=None), "vLLM cannot load it: "),
    "with odd scaling": (said("adapter_config.json", alpha_pattern={"(": 1.0}), "vLLM cannot"),
}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Answers of one probe process about all odd models and adapters."""
    folder = tmp_path_factory.mktemp("odd")
    base = make_models(folder, which=["llama"], layers=2)["llama"]
    questions = []
    for name, (spoil, _) in MODELS.items():
        spoil(path := shutil.copytree(base, folder / name))
        questions.append(question(name, path, dtype="float32"))
    for name, (spoil, _) in ADAPTERS.items():
        spoil(path := make_adapter(folder / f"adapter {name}", base, seed=1))
        modules = [json.dumps({"name": "a", "path": str(path)})]
        questions.append(question(f"adapter {name}", base, enable_lora=True, lora_modules=modules))
    return answers(questions)


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_that_no_engine_could_serve_is_one_line(
    answered: dict[str, dict[str, Any]], name: str
) -> None:
    judge(answered[name], MODELS[name][1])


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_that_would_change_nothing_or_end_the_engine_is_one_line(
    answered: dict[str, dict[str, Any]], name: str
) -> None:
    judge(answered[f"adapter {name}"], ADAPTERS[name][1])


def judge(answer: dict[str, Any], words: str) -> None:
    """Check an answer: a refusal in one line with `words`, or facts if there are none."""
    if not words:
        assert "facts" in answer, answer
        return
    line = answer["refused"]
    assert words in line and line.isprintable() and len(line) < 1000


HANGS = """
import time
from mirage.engine import probe
probe.LIMIT_S, probe.answer = 0.5, lambda question, device: time.sleep(600)
print(probe.said({"tenant": "a"})["refused"])
"""


def test_a_model_that_takes_for_ever_keeps_nobody_waiting() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", HANGS],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
    )
    assert (
        asked.stdout == "vLLM looked at this model for 0.5 s and gave no answer: see its folder\n"
    )
