"""Proposed configurations for models that have none."""

from __future__ import annotations

import pytest
from model_facts import make_facts
from msgspec.structs import replace

from mirage.config import Config
from mirage.errors import InputRefused
from mirage.facts import KVGroups, ModelFacts
from mirage.serve.fit.fit import fit, with_shares
from mirage.serve.proposal.proposing import HostMachine, OfferedModel, Proposal, propose
from mirage.serve.proposal.words import NamedModel, is_config, named
from mirage.units import GIB, MIB

pytestmark = pytest.mark.pure
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def model(
    name: str, gib: float, longest: int = 8192, kv_token_bytes: int = 64 * 1024, **more: object
) -> OfferedModel:
    """Offered model of 32 layers that take `gib` GiB in all, with requests of up to `longest`
    tokens.
    """
    facts = make_facts(
        32,
        int(gib * GIB) // 32,
        16 * MIB,
        kv_token_bytes=kv_token_bytes,
        max_model_len=longest,
        **more,
    )
    return OfferedModel(name, f"org/{name}@{COMMIT}", facts, longest)


def host(gib: float, asked: int | None = None) -> HostMachine:
    return HostMachine("host", int(gib * GIB), int(gib * GIB), "host memory", asked)


def gpu(gib: float, host_gib: float = 256) -> HostMachine:
    return HostMachine("cuda", int(gib * GIB), int(host_gib * GIB), "a GPU")


def config_of(proposal: Proposal, models: list[OfferedModel]) -> Config:
    """Configuration of a proposal, read back. Each tenant must fit, at least if it were alone."""
    config = Config.model_validate(proposal.raw)
    facts = {one.name: _asked(one, config.tenant(one.name).max_model_len) for one in models}
    fits, too_large = fit(with_shares(config, facts), facts)
    assert set(fits) == set(facts), too_large
    return config


def _asked(one: OfferedModel, tokens: int) -> ModelFacts:
    """Facts of a model that vLLM would give for requests of up to `tokens` tokens."""
    (group,) = one.facts.kv.groups
    group = replace(group, most_blocks=-(-tokens // group.block_tokens))
    return replace(one.facts, kv=KVGroups((group,)))


def lengths(config: Config) -> list[int]:
    return [tenant.max_model_len for tenant in config.tenants]


def shares(config: Config) -> list[float | None]:
    return [tenant.share for tenant in config.tenants]


def test_a_gpu_is_taken_but_for_what_engines_need_beside() -> None:
    models = [model("a", 16), model("b", 16)]
    config = config_of(propose(gpu(80), models), models)
    assert config.device.kind == "cuda"
    assert config.device.memory == int((80 * 0.98 - 2 * 3) * GIB) // MIB * MIB
    assert shares(config) == [50, 50] and not config.rostered
    assert lengths(config) == [8192, 8192]


def test_of_a_host_no_more_is_taken_than_requests_may_need() -> None:
    models = [model("a", 1, longest=4096)]
    config = config_of(propose(host(64), models), models)
    # Parameters, and for each of eight requests 128 blocks of 32 tokens, and vLLM's null block.
    kv = 8 * (128 + 1) * 32 * 64 * 1024
    assert config.device.memory == 1 * GIB + 16 * MIB + kv + MIB
    assert shares(config) == [100] and lengths(config) == [4096]
    assert config.remap.max_percent > 0


def test_what_is_left_is_shared_out_evenly() -> None:
    models = [model("large", 24), model("small", 2)]
    config = config_of(propose(gpu(48), models), models)
    large, small = shares(config)
    assert large is not None and small is not None
    assert 99.9 < large + small <= 100
    memory = config.device.memory
    assert abs((large - small) / 100 * memory - 22 * GIB) < 0.001 * memory


@pytest.mark.parametrize(("gib", "tokens"), [(80, 32768), (24, 16384), (20.5, 4096)])
def test_longest_requests_are_halved_until_they_leave_room(gib: float, tokens: int) -> None:
    models = [model("a", 16, longest=32768, kv_token_bytes=128 * 1024)]
    assert lengths(config_of(propose(gpu(gib), models), models)) == [tokens]


def test_no_length_is_lowered_below_what_a_model_has() -> None:
    models = [model("a", 15.5, longest=512), model("b", 0.1, longest=32768)]
    assert lengths(config_of(propose(gpu(24), models), models))[0] == 512


def test_models_that_do_not_fit_together_come_and_go() -> None:
    models = [model(name, 16) for name in "abc"]
    proposal = propose(gpu(40), models)
    config = config_of(proposal, models)
    assert shares(config) == [None, None, None] and config.rostered
    assert not proposal.together
    assert "not all models fit at once: they come and go as requests ask" in proposal.lines


def test_layers_stay_where_host_memory_has_no_room_for_a_copy() -> None:
    models = [model("a", 16)]
    for machine in (gpu(40, host_gib=12), host(20)):
        proposal = propose(machine, models)
        assert config_of(proposal, models).remap.max_percent == 0
        assert proposal.lines[-1].startswith("layers stay: host memory has no room")


@pytest.mark.parametrize("machine", [gpu(16), host(12), host(64, asked=8 * GIB)])
def test_a_model_that_is_too_large_is_refused(machine: HostMachine) -> None:
    with pytest.raises(InputRefused, match=r"^large takes 16.1 GiB \(parameters, and the KV cache"):
        propose(machine, [model("small", 1), model("large", 16)])


def test_memory_that_somebody_wants_is_what_is_divided() -> None:
    models = [model("a", 1)]
    assert config_of(propose(host(64, asked=6 * GIB), models), models).device.memory == 6 * GIB
    odd = propose(host(64, asked=6 * GIB + MIB), models)
    assert odd.raw["device"] == {"kind": "host", "memory": "6145MiB"}


def test_a_model_without_a_kv_cache_fits_as_well() -> None:
    models = [model("a", 1, kv_token_bytes=0)]
    assert shares(config_of(propose(host(64), models), models)) == [100]


def test_code_that_is_trusted_is_said() -> None:
    models = [model("a", 1)._replace(code=True), model("b", 1)]
    tenants = propose(gpu(24), models).raw["tenants"]
    assert [tenant.get("engine_args") for tenant in tenants] == [
        {"trust_remote_code": True},
        None,
    ]


# Words of a command line.


@pytest.mark.parametrize(
    ("word", "folder", "file", "config"),
    [
        ("c.yaml", False, True, True),
        ("missing.yaml", False, False, True),
        ("configs/missing.yaml", False, False, True),
        ("configs/plain", False, True, True),
        ("missing", False, False, True),
        ("../missing", False, False, True),
        ("org/name", False, False, False),
        ("org/name@main", False, False, False),
        ("folder", True, False, False),
        ("org/folder", True, False, False),
    ],
)
def test_one_word_is_a_file_or_a_model(word: str, folder: bool, file: bool, config: bool) -> None:
    assert is_config(word, folder=folder, file=file) is config


def test_models_are_served_by_their_whole_names_and_folders_by_theirs() -> None:
    pinned = f"org/code@{COMMIT}"
    words = ["org/name@v1", "out/models/opt", pinned]
    assert named(words, [None, "opt", None], [pinned]) == [
        NamedModel("org/name@v1", "org/name"),
        NamedModel("out/models/opt", "opt"),
        NamedModel(pinned, "org/code", code=True),
    ]


@pytest.mark.parametrize(
    ("words", "trusted", "said"),
    [
        (["a/b@v1", "a/b@v2"], [], "two models would be served as 'a/b'"),
        (["a/b", "c.yaml"], [], "'c.yaml': name one configuration file, or models"),
        (["a/b", "gpt2"], [], "'gpt2': there is no such folder, and a model at a hub is named"),
        (["a/b"], ["a/b"], "--trust-remote-code 'a/b': name a model that is served, with the"),
        ([f"a/b@{COMMIT}"], ["a/b"], "--trust-remote-code 'a/b'"),
        (["a/b"], [f"a/b@{COMMIT}"], f"--trust-remote-code 'a/b@{COMMIT}'"),
    ],
)
def test_words_that_name_no_model_are_refused(
    words: list[str], trusted: list[str], said: str
) -> None:
    with pytest.raises(InputRefused) as refused:
        named(words, [None for _ in words], trusted)
    assert said in str(refused.value)
