"""Makes a family's folder: transformers' own class with random weights, or a maker's files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mirage.tools.demo.tokenizer import save_tokenizer
from tests.zoo.family import Family


def make(family: Family, folder: Path) -> Path:
    """Folder of the model, `folder`/name, made once."""
    path = folder / family.name
    if (path / "config.json").exists():
        return path
    (family.maker or with_transformers)(family, path)
    if not (path / "tokenizer.json").exists():
        save_tokenizer(path, 2048)
    return path


def make_all(families: Iterable[Family], folder: Path) -> Path:
    """Make the models of `families` in `folder`, and return it."""
    for family in families:
        make(family, folder)
    return folder


def with_transformers(family: Family, path: Path) -> None:
    """Save a model of transformers' class in bfloat16, with matrices that are random enough."""
    model = build(family)
    model.save_pretrained(path)
    if family.architecture:
        edit(path, architectures=[family.architecture])


def build(family: Family) -> Any:
    """A model of transformers in bfloat16, whose matrices have the family's spread."""
    import torch
    import transformers

    torch.manual_seed(family.seed)
    config = transformers.AutoConfig.for_model(family.model_type, **family.shape)
    model = getattr(transformers, family.auto).from_config(config).to(torch.bfloat16)
    shake(model, family.spread)
    return model


def shake(model: Any, spread: float) -> None:
    """Draw matrices so that tokens vary, and change vectors slightly."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("A_log", "conv1d.weight")):
                continue
            noise = torch.randn(parameter.shape)
            if parameter.dim() > 1:
                parameter.copy_(noise * spread)
            else:
                parameter.add_((noise * 0.02).to(parameter.dtype))


def edit(path: Path, **fields: Any) -> None:
    """Change fields of config.json; None removes one."""
    file = path / "config.json"
    config = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}, indent=1))


def config_of(model: Any) -> dict[str, Any]:
    """Configuration with the name of its class, as `save_pretrained` writes it."""
    return model.config.to_dict() | {"architectures": [type(model).__name__]}


def save(path: Path, config: dict[str, Any], tensors: dict[str, Any], **fields: Any) -> None:
    """Write a folder by hand: `config` with `fields`, and one safetensors file."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    fields = {"dtype": "bfloat16"} | fields
    (path / "config.json").write_text(json.dumps({**config, **fields}, indent=1, default=str))
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, path / "model.safetensors", metadata={"format": "pt"})
