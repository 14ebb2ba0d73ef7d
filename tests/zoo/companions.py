"""A llama with what may stand beside it: adapters, or something that guesses its next tokens.

What random weights guess is mostly wrong. The draft model is the llama itself with a little
noise: it is right often enough.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.zoo.family import HIDDEN, VOCABULARY, Family, shape

ADAPTERS = ("first", "second")
GUESSES = 3
"""Tokens guessed at a time."""
NOISE = 0.02
BESIDE = "beside"
"""The folder, in the llama's, of what stands beside it."""


def _with(make: Any) -> Any:
    """Maker of the llama and of what stands beside it, by `make`."""

    def maker(family: Family, path: Path) -> None:
        from tests.zoo.making import with_transformers

        with_transformers(family, path)
        make(path, path / BESIDE)

    return maker


def adapters(model: Path, folder: Path) -> None:
    """Two adapters, by name."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
    from lora_folder import make_adapter

    for seed, name in enumerate(ADAPTERS):
        make_adapter(folder / name, model, seed)


def requests(path: Path) -> list[Any]:
    """Arguments of vLLM with a prompt: no adapter, the first one, the second one."""
    from vllm.lora.request import LoRARequest

    named = enumerate(ADAPTERS, start=1)
    return [None, *(LoRARequest(name, i, str(path / BESIDE / name)) for i, name in named)]


def draft_model(model: Path, folder: Path) -> None:
    """A draft model: the llama with noise."""
    from safetensors.torch import load_file
    from torch import randn_like

    from tests.zoo.making import save

    tensors = load_file(model / "model.safetensors")
    noisy = {name: t + NOISE * randn_like(t) for name, t in tensors.items()}
    save(folder, _config(model), noisy)


def eagle(model: Path, folder: Path) -> None:
    """EAGLE's head: a decoder layer over the last hidden state and the next token."""
    layer = {f"layers.0.{name}": t for name, t in _layer(HIDDEN).items()}
    _save_head(model, folder, layer | {"fc.weight": _random(HIDDEN, 2 * HIDDEN)})


def eagle3(model: Path, folder: Path) -> None:
    """EAGLE-3's head: a decoder layer over three hidden states, with an output head of its own."""
    import torch

    layer = {f"midlayer.{name}": t for name, t in _layer(2 * HIDDEN).items()}
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "norm")
    own = {f"{name}.weight": torch.ones(HIDDEN, dtype=torch.bfloat16) for name in norms}
    own |= {"fc.weight": _random(HIDDEN, 3 * HIDDEN), "lm_head.weight": _random(VOCABULARY, HIDDEN)}
    architecture = ["LlamaForCausalLMEagle3"]
    _save_head(model, folder, layer | own, architectures=architecture, draft_vocab_size=VOCABULARY)


def medusa(model: Path, folder: Path) -> None:
    """Medusa's heads, each of which guesses one of the next tokens."""
    from tests.zoo.making import save

    tensors = {}
    for head in range(GUESSES):
        tensors[f"blocks.{head}.layers.0.weight"] = _random(HIDDEN, HIDDEN)
        tensors[f"lm_heads.{head}.weight"] = _random(VOCABULARY, HIDDEN)
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "num_heads": GUESSES,
        "num_hidden_layers": 1,
    }
    save(folder, config, tensors)


def _save_head(model: Path, folder: Path, tensors: dict[str, Any], **fields: Any) -> None:
    from tests.zoo.making import save

    save(folder, _config(model), tensors, num_hidden_layers=1, **fields)


def _config(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((model / "config.json").read_text())
    return found


def _layer(inputs: int) -> dict[str, Any]:
    """Tensors of one decoder layer whose attention sees `inputs` numbers of a token."""
    import torch

    narrow, wide = HIDDEN // 2, 2 * HIDDEN
    shapes = {
        "self_attn.q_proj": (HIDDEN, inputs),
        "self_attn.k_proj": (narrow, inputs),
        "self_attn.v_proj": (narrow, inputs),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (wide, HIDDEN),
        "mlp.up_proj": (wide, HIDDEN),
        "mlp.down_proj": (HIDDEN, wide),
    }
    tensors = {f"{name}.weight": _random(*size) for name, size in shapes.items()}
    norm = torch.ones(HIDDEN, dtype=torch.bfloat16)
    return tensors | {"post_attention_layernorm.weight": norm}


def _random(*size: int) -> Any:
    import torch

    return (0.1 * torch.randn(*size)).to(torch.bfloat16)


def _guessing(method: str, **more: Any) -> Any:
    """Arguments of vLLM for guessing, given the llama's folder."""

    def arguments(path: Path) -> Mapping[str, Any]:
        config = {"method": method, "num_speculative_tokens": GUESSES, **more}
        if method != "ngram":
            config["model"] = str((path / BESIDE).resolve())
        return {"speculative_config": config}

    return arguments


def _llama(name: str, **more: Any) -> Family:
    return Family(f"llama-{name}", "llama", shape(), **more)


COMPANIONS = (
    _llama(
        "lora",
        maker=_with(adapters),
        arguments={"enable_lora": True, "max_loras": 2, "max_lora_rank": 8},
    ),
    _llama("ngram", beside=_guessing("ngram", prompt_lookup_min=1, prompt_lookup_max=3)),
    _llama("draft", maker=_with(draft_model), beside=_guessing("draft_model")),
    _llama("eagle", maker=_with(eagle), beside=_guessing("eagle")),
    _llama("eagle3", maker=_with(eagle3), beside=_guessing("eagle3")),
    _llama("medusa", maker=_with(medusa), beside=_guessing("medusa")),
)
