"""Weighing model folders, and fitting tenants into their shares."""

import json
import struct
from math import lcm
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from model_folder import LLAMA, llama_tensors, make_folder, write_safetensors

from mirage.config import Config, ConfigError
from mirage.serve.fit import Fit, fit, fit_config
from mirage.serve.table import fit_table
from mirage.serve.weights import Weights, read_weights

pytestmark = pytest.mark.pure

MIB = 2**20
PAGE = 65536


def make_config(*shares: float, memory: int = 64 * MIB, **changes: Any) -> Config:
    names = "abcdefgh"
    tenants = [
        {"name": names[i], "model": f"/models/{names[i]}", "share": share, "max_model_len": 100}
        for i, share in enumerate(shares)
    ]
    device = {"memory": memory, "page": PAGE}
    return Config.model_validate({"device": device, "tenants": tenants} | changes)


# -- weighing ---------------------------------------------------------------------------


def test_a_llama_weighs_what_its_tensors_say(tmp_path: Path) -> None:
    weights = read_weights(make_folder(tmp_path), "float32")
    layer = (64 * 64 + 128 * 64 + 64) * 4
    # 100 rows are padded to 128, in the embedding and in the output head.
    assert weights == Weights(2, layer, 2 * 128 * 64 * 4, 2 * 2 * 2 * 16 * 4)


def test_stored_floats_are_weighed_in_the_dtype_served(tmp_path: Path) -> None:
    full, half = (read_weights(make_folder(tmp_path), d) for d in ("float32", "bfloat16"))
    assert half.layer_bytes * 2 == full.layer_bytes
    assert half.fixed_bytes * 2 == full.fixed_bytes
    assert half.kv_token_bytes * 2 == full.kv_token_bytes


def test_quantised_tensors_keep_their_size(tmp_path: Path) -> None:
    write_safetensors(make_folder(tmp_path) / "model.safetensors", llama_tensors(stored="I8"))
    assert read_weights(tmp_path, "float32") == Weights(
        2, 64 * 64 + 128 * 64 + 64, 2 * 128 * 64, 2 * 2 * 2 * 16 * 4
    )


def test_a_tied_output_head_weighs_nothing(tmp_path: Path) -> None:
    weights = read_weights(make_folder(tmp_path, tie_word_embeddings=True), "float32")
    assert weights.fixed_bytes == 128 * 64 * 4


def test_opt_names_and_default_heads(tmp_path: Path) -> None:
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {f"model.decoder.layers.{i}.fc1.weight": ("F16", [64, 256]) for i in range(2)}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert read_weights(tmp_path, "float16") == Weights(2, 64 * 256 * 2, 0, 2 * 2 * 4 * 16 * 2)


def test_only_the_files_of_the_index_count(tmp_path: Path) -> None:
    whole = read_weights(make_folder(tmp_path), "float32")
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    write_safetensors(tmp_path / "consolidated.safetensors", {"extra.weight": ("F32", [9, 9])})
    index = {"weight_map": {"anything": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_weights(tmp_path, "float32") == whole


def spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def spoil_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def cut_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x01")


def lose_a_layer(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", llama_tensors(layers=1))


def shorten_weights(folder: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    whole = struct.pack("<Q", len(header)) + header + bytes(16)
    (folder / "model.safetensors").write_bytes(whole[:-1])


def odd_tensor(folder: Path) -> None:
    tensors = llama_tensors() | {"model.layers.0.x": ("Q3", [1])}
    write_safetensors(folder / "model.safetensors", tensors)


def change(**fields: Any) -> Any:
    return lambda folder: make_folder(folder, **fields)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_config, "config.json: cannot be read as JSON"),
        (remove_config, "config.json: cannot be read"),
        (remove_weights, "no *.safetensors"),
        (spoil_weights, "not a safetensors file"),
        (cut_weights, "not a safetensors file"),
        (lose_a_layer, "names 2 decoder layers, its tensors hold 1"),
        (odd_tensor, "tensor 'model.layers.0.x' is of an unknown kind"),
        (change(num_hidden_layers="two"), "num_hidden_layers is missing or not a positive"),
        (shorten_weights, "its tensors take 16 bytes, it holds 15: it is cut short"),
        (change(sliding_window=64), "sliding-window attention is not supported"),
        (change(model_type="mamba"), "state-space layers are not supported"),
        (change(kv_lora_rank=16), "multi-head latent attention is not supported"),
        (change(layer_types=["full_attention", "mamba"]), "kind 'mamba' are not supported"),
    ],
)
def test_a_folder_that_cannot_be_weighed_is_one_clear_line(
    tmp_path: Path, spoil: Any, words: str
) -> None:
    spoil(make_folder(tmp_path))
    with pytest.raises(ConfigError) as caught:
        read_weights(tmp_path, "float32")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_names_the_tenant() -> None:
    with pytest.raises(ConfigError, match="tenant 'a': no model folder at /models/a"):
        fit_config(make_config(50))


# -- fitting ----------------------------------------------------------------------------

SMALL = Weights(layers=8, layer_bytes=MIB - 5, fixed_bytes=MIB - 5, kv_token_bytes=4096)


def test_the_share_is_parameters_then_whole_extents() -> None:
    (found,) = fit(make_config(50, policy="static"), {"a": SMALL}).values()
    # 32 MiB: 9 of parameters, and 23 of blocks of 128 KiB, which are extents of their own.
    assert found == Fit(
        grant_bytes=32 * MIB,
        layers=8,
        layer_bytes=MIB,
        fixed_bytes=MIB,
        block_bytes=128 * 1024,
        extent_blocks=1,
        base_blocks=23 * 8,
        max_blocks=23 * 8,
        min_blocks=4 + 1,
    )
    assert found.spare_bytes == 0


def test_the_universe_is_what_the_policy_can_move() -> None:
    weights = {"a": SMALL, "b": SMALL}
    blocks = {
        policy: fit(make_config(40, 40, policy=policy), weights)["a"].max_blocks
        for policy in ("static", "pooled", "mirage")
    }
    base = (int(64 * MIB * 0.4) // PAGE * PAGE - 9 * MIB) // (128 * 1024)
    assert blocks == {
        "static": base,
        "pooled": (64 - 18) * 8,  # all but the parameters of both
        "mirage": (64 - 18 + 14) * 8,  # and 95 % of 8 layers of both
    }


def test_what_does_not_fit_is_told_in_bytes() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(make_config(50, 14), {"a": SMALL, "b": SMALL})
    assert str(caught.value) == (
        "tenant 'b' does not fit: it needs 9.6 MiB (parameters 9.0 MiB, KV cache for "
        "max_model_len 100 0.6 MiB), its share of 14 % is 8.9 MiB: raise the share or "
        "device.memory, or lower max_model_len"
    )


@given(
    share=st.floats(1, 100),
    memory=st.integers(MIB, 4096 * MIB),
    layers=st.integers(1, 80),
    layer_bytes=st.integers(1, 64 * MIB),
    fixed_bytes=st.integers(0, 64 * MIB),
    kv_token_bytes=st.integers(1, 2**14),
    block_tokens=st.sampled_from([1, 8, 16, 32, 48]),
    policy=st.sampled_from(["static", "pooled", "mirage"]),
)
def test_whatever_fits_stays_inside_its_share(
    share: float,
    memory: int,
    layers: int,
    layer_bytes: int,
    fixed_bytes: int,
    kv_token_bytes: int,
    block_tokens: int,
    policy: str,
) -> None:
    config = make_config(share, memory=memory, block_tokens=block_tokens, policy=policy)
    weights = Weights(layers, layer_bytes, fixed_bytes, kv_token_bytes)
    try:
        (found,) = fit(config, {"a": weights}).values()
    except ConfigError:
        assume(False)
    assert found.grant_bytes <= memory * share / 100
    assert found.spare_bytes >= 0
    assert found.layer_bytes >= layer_bytes and found.layer_bytes % PAGE == 0
    assert found.extent_bytes == lcm(PAGE, found.block_bytes)
    assert found.base_blocks % found.extent_blocks == 0
    assert found.max_blocks % found.extent_blocks == 0
    assert found.min_blocks <= found.base_blocks <= found.max_blocks
    # One request of full length, and the null block.
    assert (found.min_blocks - 1) * block_tokens >= 100
    assert found.max_blocks * found.block_bytes <= memory


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=8))
def test_all_grants_together_fit_into_the_device(shares: list[float]) -> None:
    assume(sum(shares) <= 100)
    tiny = Weights(1, PAGE, PAGE, 64)
    config = make_config(*shares, memory=1 << 30)
    fits = fit(config, {tenant.name: tiny for tenant in config.tenants})
    assert sum(found.grant_bytes for found in fits.values()) <= 1 << 30


def test_the_table_has_a_row_per_tenant() -> None:
    config = make_config(50, 30)
    lines = fit_table(config, fit(config, {"a": SMALL, "b": SMALL})).splitlines()
    assert [line.split()[0] for line in lines] == ["tenant", "a", "b", "device"]
    assert "32.0 MiB" in lines[1] and "8 x 1.0 MiB" in lines[1]
    assert "in no share 12.8 MiB" in lines[3]
