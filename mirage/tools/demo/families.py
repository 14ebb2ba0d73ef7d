"""The three architectures of the demo models: their sizes, configurations and parameter names.

Each takes the same circuit-made layers (`weights.CircuitLayer`) and writes them the way its
checkpoint stores them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mirage.tools.demo import tokenizer
from mirage.tools.demo.circuit import Circuit
from mirage.tools.demo.stream import LEVEL, ONE, CodeStream, Floats, lay_out, read, write
from mirage.tools.demo.weights import CircuitLayer, CircuitSizes, build_layer, units_needed

Family = Literal["opt", "llama", "qwen3"]
FAMILIES: tuple[Family, ...] = ("opt", "llama", "qwen3")
Parameters = dict[str, NDArray[np.float32]]

ROPE_THETA = 1e20
"""Base of the rotary embedding, so large that the slow half of the pairs turns by less than 1e-6 in
2,048 tokens.
"""
CHAINS = 16
UNIT_STEP = 32
"""The MLP's width is a multiple of this, which suits all kernels."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; `layer_bytes` is the most bytes of a decoder layer in float32.

    Raises ValueError if the sizes do not fit together.
    """

    family: Family
    hidden: int = 256
    layers: int = 8
    head_dim: int = 32
    layer_bytes: int = 3 << 20
    positions: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"unknown family {self.family!r}: use one of {', '.join(FAMILIES)}")
        if self.hidden % (4 * self.head_dim):
            raise ValueError(f"hidden {self.hidden} is no multiple of 4 heads of {self.head_dim}")
        if self.units < units_needed(self.chains, tokenizer.VOCABULARY):
            raise ValueError(
                f"layer_bytes {self.layer_bytes} leaves an MLP of {self.units} units, but "
                f"{units_needed(self.chains, tokenizer.VOCABULARY)} are needed: use more bytes"
            )

    @property
    def gated(self) -> bool:
        return self.family != "opt"

    @property
    def heads(self) -> int:
        return self.hidden // self.head_dim

    @property
    def kv_heads(self) -> int:
        return self.heads // 4 if self.gated else self.heads

    @property
    def chains(self) -> int:
        return max(CHAINS, 2 * self.heads)

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of KV cache per token and layer, in float32."""
        return 2 * self.kv_heads * self.head_dim * 4

    @property
    def units(self) -> int:
        """Width of the MLP: the largest that `layer_bytes` allows."""
        hidden, kv = self.hidden, self.kv_heads * self.head_dim
        fixed = 2 * hidden * (hidden + kv) + 2 * hidden
        fixed += 2 * self.head_dim if self.family == "qwen3" else 0
        fixed += 0 if self.gated else 7 * hidden
        unit = 3 * hidden if self.gated else 2 * hidden + 1
        return (self.layer_bytes // 4 - fixed) // unit // UNIT_STEP * UNIT_STEP

    @property
    def sizes(self) -> CircuitSizes:
        return CircuitSizes(
            head_dim=self.head_dim,
            kv_heads=self.kv_heads,
            units=self.units,
            positions=self.positions,
            rotary=self.gated,
            normed_heads=self.family == "qwen3",
            epsilon=1e-6 if self.gated else 1e-5,
        )

    def describe(self) -> dict[str, Any]:
        """Properties that identify this model, for the record in its folder."""
        return asdict(self)


def make_circuit(shape: Shape) -> Circuit:
    """The circuit that the model of this shape computes, from which the model's texts follow."""
    seed = zlib.crc32(f"{shape.family} {shape.seed}".encode())
    return Circuit(shape.layers, shape.heads, shape.chains, tokenizer.VOCABULARY, seed)


def make_config(shape: Shape) -> dict[str, Any]:
    """Content of a model's config.json."""
    common: dict[str, Any] = {
        "dtype": "float32",
        "vocab_size": tokenizer.VOCABULARY,
        "pad_token_id": tokenizer.PAD,
        "bos_token_id": tokenizer.BEGIN,
        "eos_token_id": tokenizer.END,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": False,
    }
    if not shape.gated:
        return common | {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "ffn_dim": shape.units,
            "word_embed_proj_dim": shape.hidden,
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "enable_bias": True,
        }
    return common | {
        "architectures": [f"{shape.family.capitalize()}ForCausalLM"],
        "model_type": shape.family,
        "intermediate_size": shape.units,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.sizes.epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
    }


def make_parameters(shape: Shape) -> Parameters:
    """All tensors of the checkpoint, by the names of the model's architecture."""
    rng = np.random.default_rng([shape.seed, zlib.crc32(shape.family.encode())])
    stream = lay_out(make_circuit(shape), shape.hidden, rng)
    root = "model" if shape.gated else "model.decoder"
    outer = _gated_outer if shape.gated else _opt_outer
    inner = _gated_layer if shape.gated else _opt_layer
    tensors = {f"{root}.{name}": value for name, value in outer(shape, stream)}
    tensors["lm_head.weight"] = stream.head()
    for index in range(shape.layers):
        layer = build_layer(stream, index, shape.sizes, rng)
        scales = _Scales(stream, shape.sizes, rng)
        for name, value in inner(shape, layer, scales, rng):
            tensors[f"{root}.layers.{index}.{name}"] = value
    return {name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}


class _Scales:
    """Random powers of two in a layer's norms, which the following matrices undo exactly."""

    def __init__(self, stream: CodeStream, sizes: CircuitSizes, rng: np.random.Generator) -> None:
        self.attention, self.mlp = 2.0 ** rng.integers(-1, 2, (2, stream.logical))
        self._identity = stream.norm_weight(sizes.epsilon)

    def norm(self, scale: Floats) -> Floats:
        """Norm weight of shape [hidden] for scales of shape [D]."""
        return np.tile(self._identity * scale, 2)


Named = Iterator[tuple[str, Floats]]


def _opt_outer(shape: Shape, stream: CodeStream) -> Named:
    yield "embed_tokens.weight", stream.embedding()
    # OPT's table of positions starts with two rows that no token uses.
    yield "embed_positions.weight", np.zeros((shape.positions + 2, shape.hidden))
    yield "final_layer_norm.weight", np.full(shape.hidden, stream.norm_weight(shape.sizes.epsilon))
    yield "final_layer_norm.bias", np.zeros(shape.hidden)


def _opt_layer(
    shape: Shape, layer: CircuitLayer, scales: _Scales, rng: np.random.Generator
) -> Named:
    # A bias of the keys shifts all scores alike, one of the values shifts every average.
    key_bias, value_bias = rng.uniform(-0.5, 0.5, (2, shape.hidden))
    output = write(layer.output)
    yield "self_attn.q_proj.weight", read(layer.query / scales.attention)
    yield "self_attn.q_proj.bias", np.zeros(shape.hidden)
    yield "self_attn.k_proj.weight", read(layer.key / scales.attention)
    yield "self_attn.k_proj.bias", key_bias
    yield "self_attn.v_proj.weight", read(layer.value / scales.attention)
    yield "self_attn.v_proj.bias", value_bias
    yield "self_attn.out_proj.weight", output
    yield "self_attn.out_proj.bias", -output @ value_bias
    gate = layer.gate.copy()
    gate[:, ONE] = 0
    yield "fc1.weight", read(gate / scales.mlp)
    yield "fc1.bias", LEVEL * layer.gate[:, ONE]
    yield "fc2.weight", write(layer.out)
    yield "fc2.bias", np.zeros(shape.hidden)
    for name, scale in ("self_attn_layer_norm", scales.attention), ("final_layer_norm", scales.mlp):
        yield f"{name}.weight", scales.norm(scale)
        yield f"{name}.bias", np.zeros(shape.hidden)


def _gated_outer(shape: Shape, stream: CodeStream) -> Named:
    yield "embed_tokens.weight", stream.embedding()
    yield "norm.weight", np.full(shape.hidden, stream.norm_weight(shape.sizes.epsilon))


def _gated_layer(
    shape: Shape, layer: CircuitLayer, scales: _Scales, rng: np.random.Generator
) -> Named:
    yield "self_attn.q_proj.weight", read(layer.query / scales.attention)
    yield "self_attn.k_proj.weight", read(layer.key / scales.attention)
    yield "self_attn.v_proj.weight", read(layer.value / scales.attention)
    yield "self_attn.o_proj.weight", write(layer.output)
    if shape.sizes.normed_heads:
        yield "self_attn.q_norm.weight", layer.query_norm
        yield "self_attn.k_norm.weight", layer.key_norm
    # The other factor of a gated unit is a random constant, which the last matrix undoes.
    factor = rng.choice([-1, 1], shape.units) * 2.0 ** rng.integers(-1, 2, shape.units)
    up = np.zeros_like(layer.gate)
    up[:, ONE] = factor / LEVEL
    yield "mlp.gate_proj.weight", read(layer.gate / scales.mlp)
    yield "mlp.up_proj.weight", read(up / scales.mlp)
    yield "mlp.down_proj.weight", write(layer.out / factor)
    yield "input_layernorm.weight", scales.norm(scales.attention)
    yield "post_attention_layernorm.weight", scales.norm(scales.mlp)
