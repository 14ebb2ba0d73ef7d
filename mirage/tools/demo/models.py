"""Three small models without training, as folders that vLLM and transformers load.

`python -m mirage.tools.demo.models OUT_DIR` makes OUT_DIR/opt, OUT_DIR/llama and OUT_DIR/qwen3.
Served in float32, and in no other dtype, their greedy texts are those of
`circuit_of(folder).generate(...)`, however they are batched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.numpy import save_file

from mirage.tools.demo import tokenizer
from mirage.tools.demo.circuit import Circuit
from mirage.tools.demo.families import FAMILIES, Shape, make_circuit, make_config, make_parameters

RECORD = "demo.json"
WEIGHTS = "model.safetensors"
RECORD_VERSION = 1
"""Version of the weights; raise it when equal shapes result in other weights than before."""


def make_models(
    folder: Path,
    *,
    which: Sequence[str] = FAMILIES,
    hidden: int = 256,
    layers: int = 8,
    head_dim: int = 32,
    layer_bytes: int = 3 << 20,
    positions: int = 2048,
    seed: int = 0,
) -> dict[str, Path]:
    """Make a model folder/NAME for each family in `which`, whose weights compute a circuit that is
    drawn by `seed`. The sizes, and the errors for those that are not possible, are those of
    `Shape`."""
    sizes = (hidden, layers, head_dim, layer_bytes, positions, seed)
    shapes = {name: Shape(name, *sizes) for name in which}  # type: ignore[arg-type]
    return {name: make_model(folder / name, shape) for name, shape in shapes.items()}


def make_model(folder: Path, shape: Shape) -> Path:
    """Make one model in `folder`, and return the folder. A model of this shape and `RECORD_VERSION`
    that is there is kept; anything else there is deleted.

    The folder appears complete or not at all: it is written under another name, then renamed.
    """
    if _recorded(folder) == shape and (folder / WEIGHTS).exists():
        return folder
    draft = folder.parent / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        _write(draft, shape)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def circuit_of(folder: Path) -> Circuit:
    """The circuit that the model in `folder` computes. Raises ValueError if it is no demo model of
    `RECORD_VERSION`.
    """
    shape = _recorded(folder)
    if shape is None:
        raise ValueError(f"{folder} holds no demo model: make it with mirage.tools.demo.models")
    return make_circuit(shape)


def _recorded(folder: Path) -> Shape | None:
    try:
        record = json.loads((folder / RECORD).read_text())
        return Shape(**record["shape"]) if record["version"] == RECORD_VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, shape: Shape) -> None:
    ids = {"pad": tokenizer.PAD, "bos": tokenizer.BEGIN, "eos": tokenizer.END}
    _write_json(folder / "config.json", make_config(shape))
    _write_json(folder / "generation_config.json", {f"{key}_token_id": ids[key] for key in ids})
    tokenizer.save_tokenizer(folder, shape.positions)
    save_file(make_parameters(shape), folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors lets the owner read
    _write_json(folder / RECORD, {"version": RECORD_VERSION, "shape": shape.describe()})


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    """Make models by the command line's arguments, and print the folder of each."""
    parser = argparse.ArgumentParser(prog="mirage.tools.demo.models", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="OUT_DIR")
    parser.add_argument("--which", nargs="+", choices=FAMILIES, default=FAMILIES)
    for name in ("hidden", "layers", "head_dim", "layer_bytes", "positions", "seed"):
        default = Shape.__dataclass_fields__[name].default
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=default, help=f"default {default}")
    try:
        paths = make_models(**vars(parser.parse_args()))
    except ValueError as error:
        parser.exit(2, f"mirage.tools.demo.models: {error}\n")
    for path in paths.values():
        print(path)


if __name__ == "__main__":
    main()
