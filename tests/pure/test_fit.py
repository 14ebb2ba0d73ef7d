"""Sizes of model folders, and tenants fitted into their shares of a device."""

from math import lcm
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from model_facts import full_attention, make_facts

from mirage.config import Config, ConfigError, DeviceSection
from mirage.facts import ExpertFacts, KVGroup, KVGroups
from mirage.serve.fit.fit import Fit, fit
from mirage.serve.fit.page_size import PageSize
from mirage.serve.fit.table import fit_table, kv_words
from mirage.serve.launch.preflight import fit_config

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


def test_a_missing_folder_names_the_tenant() -> None:
    with pytest.raises(ConfigError, match="tenant 'a': no model folder at /models/a"):
        fit_config(make_config(50))


# -- fitting ----------------------------------------------------------------------------

SMALL = make_facts(8, MIB - 5, MIB - 5)


def fitted(config: Config, facts: dict[str, Any]) -> dict[str, Fit]:
    fits, too_large = fit(config, facts)
    assert not too_large
    return fits


def test_the_share_is_parameters_then_whole_extents() -> None:
    (found,) = fitted(make_config(50, policy="static"), {"a": SMALL}).values()
    # 32 MiB: 9 of parameters, and 23 of blocks of 128 KiB, which are extents of their own.
    assert found == Fit(
        page=PageSize(PAGE),
        grant_bytes=32 * MIB,
        layers=8,
        layer_bytes=MIB,
        fixed_bytes=MIB - 5,
        block_bytes=128 * 1024,
        extent_blocks=1,
        base_blocks=23 * 8,
        max_blocks=23 * 8,
        min_blocks=4 + 1,
        movable_layers=0,
        architecture="LlamaForCausalLM",
        kv=SMALL.kv,
    )
    assert found.spare_bytes == 5


def test_the_universe_is_what_the_policy_can_move() -> None:
    facts = {"a": SMALL, "b": SMALL}
    blocks = {
        policy: fitted(make_config(40, 40, policy=policy), facts)["a"].max_blocks
        for policy in ("static", "pooled", "mirage")
    }
    base = (int(64 * MIB * 0.4) - 9 * MIB) // (128 * 1024)
    assert blocks == {
        "static": base,
        "pooled": (64 - 18) * 8,  # all but the parameters of both
        "mirage": (64 - 18 + 14) * 8,  # and 95 % of 8 layers of both
    }


def test_what_does_not_fit_is_told_in_bytes() -> None:
    fits, too_large = fit(make_config(50, 14), {"a": SMALL, "b": SMALL})
    assert [*fits] == ["a"] and [*too_large] == ["b"]
    assert too_large["b"] == (
        "it does not fit: it needs 9.6 MiB (parameters 9.0 MiB, KV cache for "
        "max_model_len 100 0.6 MiB), its share of 14 % is 9.0 MiB: raise the share or "
        "device.memory, or lower max_model_len"
    )


def test_sizes_that_words_do_not_tell_apart_are_told_in_bytes() -> None:
    _, too_large = fit(make_config(50, 15), {"a": SMALL, "b": SMALL})
    assert "it needs 10,092,539 bytes (" in too_large["b"]
    assert "15 % is 10,066,329 bytes:" in too_large["b"]


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
    facts = make_facts(
        layers,
        layer_bytes,
        fixed_bytes,
        kv_token_bytes=kv_token_bytes,
        block_tokens=block_tokens,
    )
    fits, _ = fit(config, {"a": facts})
    assume(fits)
    (found,) = fits.values()
    # Shares are taken in whole millionths of a per cent.
    assert found.grant_bytes <= memory * (share + 1e-6) / 100
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
    tiny = make_facts(1, PAGE, PAGE, kv_token_bytes=64)
    config = make_config(*shares, memory=1 << 30)
    fits = fitted(config, {tenant.name: tiny for tenant in config.tenants})
    assert sum(found.grant_bytes for found in fits.values()) <= 1 << 30


def test_a_tenant_whose_layers_stay_lends_nobody_its_parameters() -> None:
    config = make_config(40, 40, policy="mirage")
    stays = make_facts(8, MIB - 5, MIB - 5, stays="packed")
    found = fitted(config, {"a": SMALL, "b": stays})
    assert found["a"].movable_layers == 7 and found["b"].movable_layers == 0
    assert found["a"].max_blocks == (64 - 18 + 7) * 8
    assert found["b"].stays == "packed"


def test_the_tenants_own_percentage_bounds_what_moves() -> None:
    config = make_config(40, policy="mirage")
    tenant = config.tenants[0].model_copy(update={"max_percent": 50})
    found = fitted(config.model_copy(update={"tenants": [tenant]}), {"a": SMALL})
    assert found["a"].movable_layers == 4


def test_a_model_without_a_kv_cache_fits_by_its_parameters() -> None:
    facts = make_facts(8, MIB, MIB, block_bytes=0, kv=KVGroups())
    (found,) = fitted(make_config(15), {"a": facts}).values()
    assert (found.base_blocks, found.max_blocks, found.min_blocks) == (0, 0, 0)
    assert found.spare_bytes == found.grant_bytes - 9 * MIB


def test_a_block_in_several_runs_makes_larger_extents() -> None:
    # 24 KiB in each of 8 layers' runs: 8 blocks fill 3 pages of 64 KiB in each.
    facts = make_facts(8, MIB, MIB, block_bytes=8 * 24 * 1024, block_runs=8)
    (found,) = fitted(make_config(50), {"a": facts}).values()
    assert found.extent_blocks == 8
    assert found.extent_bytes == 8 * 3 * PAGE


def test_what_one_that_does_not_fit_would_have_held_is_there_for_the_others() -> None:
    alone = fitted(make_config(50), {"a": SMALL})
    assert fit(make_config(50, 14), {"a": SMALL, "b": SMALL})[0] == alone


def test_the_longest_request_counts_in_every_group() -> None:
    window = KVGroup("sliding_window", 4, 32, 3)
    state = KVGroup("mamba", 4, 512, 1, grows=False)
    kv = KVGroups((full_attention(4, 100), window, state))
    (found,) = fitted(make_config(50), {"a": make_facts(8, MIB, MIB, kv=kv)}).values()
    assert found.min_blocks == 4 + 3 + 1 + 1


def test_the_table_has_a_row_per_tenant_and_says_what_the_models_are() -> None:
    config = make_config(50, 30)
    stays = make_facts(8, MIB - 5, MIB - 5, stays="packed by oneDNN")
    lines = fit_table(config, fitted(config, {"a": SMALL, "b": stays})).splitlines()
    assert [line.split()[0] for line in lines] == ["tenant", "a", "b", "device", "a:", "b:"]
    assert "32.0 MiB" in lines[1] and "8 x 1.0 MiB" in lines[1]
    assert "in no share 12.8 MiB" in lines[3]
    assert "LlamaForCausalLM" in lines[4] and "4 KV blocks for 100 tokens" in lines[4]
    assert lines[5].endswith("its layers stay: packed by oneDNN")


@pytest.mark.parametrize(
    ("changes", "facts", "words"),
    [
        ({}, {}, "; up to 3 of 4 experts of each of 8 layers can go, 0.7 MiB for one of each"),
        ({}, {"slices": (98304, 5000)}, "experts stay: 5000 bytes of an expert are not whole "),
        (
            {"compile": True},
            {},
            "; up to 3 of 4 experts of each of 8 layers can go, 0.7 MiB for one of each",
        ),
    ],
)
def test_the_table_says_what_experts_can_give(changes: Any, facts: Any, words: str) -> None:
    config = make_config(50, policy="mirage")
    experts = ExpertFacts(**{"layers": 8, "count": 4, "slices": (65536, 32768 + 4096)} | facts)
    mixture = make_facts(8, MIB, MIB, experts=experts)
    assert "experts" not in fit_table(config, fitted(config, {"a": mixture}))
    asked = config.model_copy(
        update={
            "remap": config.remap.model_copy(update={"experts": True}),
            "device": config.device.model_copy(update={"page": 4096} | changes),
        }
    )
    assert words in fit_table(asked, fitted(asked, {"a": mixture})).splitlines()[-1]
    plain = make_facts(8, MIB, MIB, experts_stay="it has none")
    table = fit_table(asked, fitted(asked, {"a": plain}))
    assert table.endswith("; its experts stay: it has none")


def test_the_table_says_how_large_pages_are_if_that_was_left_open() -> None:
    config = make_config(50, memory=8 << 30)
    config = config.model_copy(update={"device": DeviceSection(kind="cuda", memory=8 << 30)})
    facts = make_facts(8, 129 * MIB, MIB)
    found = fitted(config, {"a": facts})
    lines = fit_table(config, found).splitlines()
    assert lines[3] == "pages of 2.0 MiB: with 4.0 MiB a layer of 'a' would lose 2.3%"
    assert found["a"].layer_bytes == 130 * MIB and found["a"].page.bytes == 2 * MIB


def test_groups_in_words() -> None:
    window = KVGroup("sliding_window", 2, 32, 3)
    kv = KVGroups((full_attention(2, 100), window, window, window))
    assert kv_words(kv, 32) == (
        "KV of 2 layers full_attention and 3 x 2 layers sliding_window, 32 tokens a block"
    )
    wide = KVGroup("sliding_window", 2, 64, 3)
    assert kv_words(KVGroups((full_attention(2, 100), wide)), 32).startswith(
        "KV of 2 layers full_attention of 32 tokens a block and "
        "2 layers sliding_window of 64 tokens a block"
    )
    assert kv_words(KVGroups(), 16) == "no KV cache"


def test_blocks_that_vllm_makes_otherwise_are_told() -> None:
    latent = KVGroups((full_attention(8, 100, 16, "mla_attention"),))
    state = KVGroup("mamba", 8, 512, 1, grows=False)
    told = "KV of 8 layers mla_attention, 16 tokens a block"
    assert kv_words(latent, 16) == told
    assert kv_words(latent, 32) == f"{told} (vLLM's own choice: block_tokens is 32)"
    assert "choice" not in kv_words(KVGroups((state,)), 32), "a state has no tokens to count"
    config = make_config(50).model_copy(update={"block_tokens": 64})
    assert "block_tokens is 64" in fit_table(config, fitted(config, {"a": make_facts()}))
