"""The paper's arithmetic for a configuration: by hand, and what must hold of it everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from model_folder import OPT_13B, make_unweighed, write_safetensors

from mirage import profiles
from mirage.config import Config, ConfigError, DeviceSection
from mirage.control.hidden_layers import hidden_layers
from mirage.control.hiding import hides
from mirage.control.rules import Rules
from mirage.control.tenant_state import MetadataStore
from mirage.profiles import Hardware, SourcedPositive, shape
from mirage.serve.models.shapes import UnknownShape, read_shape
from mirage.serve.models.step_times import of_model, profiled
from mirage.tools.explain.arithmetic import Explained, Hidden, Subject, explained
from mirage.tools.explain.command import parse_batches
from mirage.tools.explain.machine import machine, nearest
from mirage.tools.explain.sizes import rate
from mirage.tools.explain.subjects import subjects
from mirage.tools.explain.words import first_worth, sentences
from mirage.units import size
from scheduler.tenants import Tenant
from tests.examples import examples

pytestmark = pytest.mark.pure

GIB = 2**30
LOAD_S = 600 * 2**20 / 427e9
"""T_T of OPT-13b on a GH200."""
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
MATRICES = {"q": [64, 64], "k": [32, 64], "v": [32, 64], "o": [64, 64]} | {
    name: [128, 64] for name in ("gate", "up", "down")
}
OF_A_LAYER = 3 * 64 * 64 + 3 * 128 * 64


def linked(gb_s: float, name: str = "gh200") -> Hardware:
    """Hardware profile whose link has `gb_s` GB/s in both measures, one-way and mixed."""
    link = SourcedPositive(value=gb_s, source="this test")
    return profiles.hardware(name).model_copy(update={"link_gb_s": link, "link_mixed_gb_s": link})


def subject(
    model: str = "opt-13b", floor: int = 1, percent: float | None = None, block_tokens: int = 16
) -> Subject:
    """Subject of `mirage explain`: one tenant with all of a GH200's 80 GiB, and requests of 1,024
    tokens.
    """
    known = profiles.model(model)
    sizes = shape(known, profiles.hardware("gh200"), block_tokens, 2048, 80 * GIB)
    tenant = Tenant("a", 100, floor_layers=floor, max_percent=percent)
    return Subject(tenant, known, sizes, 1024, most_requests=100, share_blocks=1000)


def of_batch(one: Subject, hardware: Hardware, batch: int) -> Hidden:
    return explained(one, hardware, Rules(), [batch]).hidden[0]


subjects_drawn = st.builds(
    subject,
    st.sampled_from(["opt-13b", "llama-3-8b", "mixtral-8x7b", "demo-llama"]),
    st.integers(1, 12),
    st.sampled_from([None, 0.0, 10.0, 50.0, 100.0]),
    st.sampled_from([16, 32]),
)
links = st.floats(0.01, 1e5)
batches = st.sampled_from([1, 8, 32, 128])


# -- by hand ----------------------------------------------------------------------------


def test_opt_13b_on_a_gh200_as_the_papers_conditions_say() -> None:
    found = explained(subject(), profiles.hardware("gh200"), Rules(), [1, 8, 32])
    weights = 40 * (4 * 5120**2 + 2 * 5120 * 20480) + 50272 * 5120
    assert found.layer_bytes == 600 * 2**20  # 314,572,800 weights of two bytes
    assert found.load_s == pytest.approx(600 * 2**20 / 427e9)
    assert found.most_remapped == 37  # one layer stays, two slots
    for hidden in found.hidden:
        kv = 2 * 2 * 40 * 5120 * hidden.batch * 1025
        step = (2 * weights + kv) / (0.8 * 4e12) + 2e-3
        assert hidden.compute_s == pytest.approx(step / 40, rel=1e-6)
        # two slots: T_T (layers + 2) <= T_c n
        assert hidden.layers_remapped == int(step / found.load_s) - 2
        assert hidden.stream_slots == 2
    assert [hidden.layers_remapped for hidden in found.hidden] == [4, 6, 10]


def test_the_memory_of_four_layers_in_blocks_and_tokens() -> None:
    hidden = of_batch(subject(), profiles.hardware("gh200"), 1)
    block = 16 * 2 * 2 * 40 * 5120  # 12.5 MiB: an extent of two-MiB pages is four blocks
    extents = 4 * 600 * 2**20 // (4 * block)
    assert hidden.kv_bytes == extents * 4 * block
    assert hidden.kv_blocks == 4 * extents == 192
    assert hidden.kv_tokens == 192 * 16


def test_behind_pcie_nothing_hides_at_a_single_request() -> None:
    hidden = of_batch(subject(), profiles.hardware("h100"), 1)
    assert (hidden.layers_remapped, hidden.stream_slots, hidden.kv_bytes, hidden.kv_tokens) == (
        0,
        0,
        0,
        0,
    )
    assert hidden.one_layer_gb_s is not None
    assert 51 < hidden.one_layer_gb_s < 427


# -- everywhere -------------------------------------------------------------------------


@given(one=subjects_drawn, slow=links, fast=links, batch=batches)
@examples(50)
def test_a_slower_link_never_hides_more(one: Subject, slow: float, fast: float, batch: int) -> None:
    slow, fast = sorted((slow, fast))
    assert (
        of_batch(one, linked(slow), batch).layers_remapped
        <= of_batch(one, linked(fast), batch).layers_remapped
    )


@given(one=subjects_drawn, link=links, batch=batches)
@examples(50)
def test_what_is_given_is_allowed_hides_and_comes_back_in_whole_extents(
    one: Subject, link: float, batch: int
) -> None:
    found = explained(one, linked(link), Rules(), [batch])
    hidden, sizes = found.hidden[0], one.shape
    percent = 95.0 if one.tenant.max_percent is None else one.tenant.max_percent
    assert hidden.layers_remapped <= found.most_remapped <= percent / 100 * sizes.layers
    if hidden.layers_remapped:
        assert (
            hidden.layers_remapped + hidden.stream_slots <= sizes.layers - one.tenant.floor_layers
        )
        load = found.load_s * (1 - 1e-9)
        assert hides(
            hidden.layers_remapped, hidden.stream_slots, sizes.layers, load, hidden.compute_s
        )
    assert hidden.kv_bytes % sizes.extent_bytes == 0
    assert 0 <= hidden.layers_remapped * sizes.layer_bytes - hidden.kv_bytes < sizes.extent_bytes
    assert hidden.kv_blocks == hidden.kv_bytes // sizes.extent_bytes * sizes.extent_blocks
    assert hidden.kv_tokens == hidden.kv_blocks * sizes.block_tokens


@given(one=subjects_drawn, batch=batches)
@examples(50)
def test_the_break_even_is_the_threshold(one: Subject, batch: int) -> None:
    found = explained(one, linked(50), Rules(), [batch])
    first, every = found.hidden[0].one_layer_gb_s, found.hidden[0].all_layers_gb_s
    if not found.most_remapped:
        assert first is every is None
        return
    assume(first is not None and every is not None)
    assert first is not None and every is not None and first <= every
    assert of_batch(one, linked(first * (1 - 1e-6)), batch).layers_remapped == 0
    assert of_batch(one, linked(first * (1 + 1e-6)), batch).layers_remapped >= 1
    assert of_batch(one, linked(every * (1 - 1e-6)), batch).layers_remapped < found.most_remapped
    assert of_batch(one, linked(every * (1 + 1e-6)), batch).layers_remapped == found.most_remapped


# -- shapes -----------------------------------------------------------------------------


def weighed(folder: Path, layers: int = 2, **more: list[int]) -> Path:
    """Folder of a very small Llama with headers of its weights; each layer has
    `more` tensors too.
    """
    make_unweighed(folder, LLAMA)
    named = MATRICES | {"input_norm": [64], "output_norm": [64]} | more
    held = {
        f"model.layers.{i}.{name}.weight": ("F32", dimensions)
        for i in range(layers)
        for name, dimensions in named.items()
    }
    write_safetensors(folder / "model.safetensors", held)
    return folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("opt-13b", OPT_13B),
        (
            "llama-3-8b",
            LLAMA
            | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
            | {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256},
        ),
        (
            "mixtral-8x7b",
            LLAMA
            | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
            | {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000}
            | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        ),
    ],
)
def test_a_folder_says_what_the_bundled_shape_says(
    tmp_path: Path, name: str, said: dict[str, Any]
) -> None:
    known = profiles.model(name)
    found = read_shape(make_unweighed(tmp_path, said), "bfloat16")
    same = {"layer_weights", "active_layer_weights", "other_weights", "kv_token_bytes"}
    assert {key: getattr(found, key) for key in same} == {key: getattr(known, key) for key in same}


def test_headers_tell_what_norms_take(tmp_path: Path) -> None:
    found = read_shape(weighed(tmp_path), "float32")
    assert found.vectors == 128
    assert found.layer_weights == OF_A_LAYER + 128


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "mamba2"}, "its model_type is 'mamba2', known are llama, "),
        ({"num_key_value_heads": [1, 2]}, "has another num_key_value_heads for each layer"),
        ({"quantization_config": {"bits": 4}}, "its weights are quantised"),
        ({"sliding_window": 64}, "it has sliding windows"),
        ({"word_embed_proj_dim": 32}, "another width than its layers"),
        ({"vocab_size": None}, "its config.json has no vocab_size"),
        ({"intermediate_size": 0}, "its config.json has sizes that are none"),
        ({"num_attention_heads": 0}, "its config.json has sizes that are none"),
    ],
)
def test_a_shape_that_only_vllm_knows_is_one_line(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnknownShape) as found:
        read_shape(make_unweighed(tmp_path, LLAMA | changes), "float32")
    assert why in str(found.value)
    assert "\n" not in str(found.value)


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    said = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    with pytest.raises(UnknownShape, match="has no intermediate_size"):
        read_shape(make_unweighed(tmp_path, said), "float32")


def test_files_that_hold_other_layers_are_found(tmp_path: Path) -> None:
    with pytest.raises(UnknownShape, match="hold 3 layers, not 2"):
        read_shape(weighed(tmp_path / "a", layers=3), "float32")
    with pytest.raises(UnknownShape, match=f"holds 41,088 weights, .* says {OF_A_LAYER:,}"):
        read_shape(weighed(tmp_path / "b", extra=[64, 64]), "float32")


# -- configurations ---------------------------------------------------------------------


def gpu_config(folder: Path, tenants: dict[str, Any] | None = None, **more: Any) -> Config:
    """Configuration of two tenants with OPT-13b on 72 GiB of a GPU; `tenants` replaces keys of
    both.
    """
    model = make_unweighed(folder / "model", OPT_13B)
    each = {"model": str(model), "share": 50, "max_model_len": 2048}
    each |= tenants or {}
    device = {"kind": "cuda", "memory": "72GiB"}
    both = [{"name": name, **each} for name in ("chat", "code")]
    return Config.model_validate({"device": device, "tenants": both, "block_tokens": 16} | more)


def told(config: Config, hardware: Hardware) -> list[str]:
    known = subjects(config, hardware, 1024)
    rules = Rules.served(config)
    found = [explained(one, hardware, rules, [1, 8, 32, 128]) for one in known.subjects]
    return sentences(config, known.fits, found, hardware.link_gb_s.value)


def test_shapes_and_fits_say_the_same(tmp_path: Path) -> None:
    known = subjects(gpu_config(tmp_path), profiles.hardware("gh200"), 4096)
    for one in known.subjects:
        fit = known.fits[one.tenant.name]
        assert one.shape.layer_bytes == fit.layer_bytes
        assert one.shape.extent_bytes == fit.extent_bytes
        assert one.shape.extent_blocks == fit.extent_blocks
        assert one.context == 2048  # the longest that is served
        assert one.most_requests == (fit.max_blocks - 1) // 128


def test_a_fast_link_pays_for_active_models_and_a_slow_one_for_idle_ones(tmp_path: Path) -> None:
    turns = {"sharing": {"mode": "temporal", "turn_s": 5}}
    for more in ({}, turns):
        active, idle, link = told(gpu_config(tmp_path, **more), profiles.hardware("gh200"))
        assert active.startswith("Remapping pays here, for active models too: 4 of 40 layers of ")
        assert "37 layers of chat and code (21.7 GiB a model" in idle
        assert link.endswith("this link has 427 GB/s.")
        active, idle, link = told(gpu_config(tmp_path, **more), profiles.hardware("h100"))
        assert active.startswith("Remapping pays here for idle models only: ")
        assert "GB/s at batch 1 and " in link


def test_a_model_alone_has_nobody_to_lend_to(tmp_path: Path) -> None:
    both = gpu_config(tmp_path)
    alone = both.model_copy(update={"tenants": both.tenants[:1]})
    assert told(alone, profiles.hardware("gh200"))[0].startswith(
        "Remapping pays here, for active models only: 4 of 40 layers of chat hide behind "
    )
    pays, idle, _ = told(alone, profiles.hardware("h100"))
    assert pays.startswith("Remapping does not pay here: no active model ")
    assert idle.startswith("There is no other model ")


@pytest.mark.parametrize(
    ("turn_s", "drain", "spares"),
    [(1.0, True, False), (1.0, False, True), (1.0, "auto", True), (0.1, False, False)],
)
def test_turns_too_short_for_the_link_do_not_pay(
    tmp_path: Path, turn_s: float, drain: bool | str, spares: bool
) -> None:
    """In turns that do not drain, and in which the link loads a layer and more, layers are lent all
    the same while many requests are preempted. So the advice is not to use another policy.
    """
    config = gpu_config(tmp_path, sharing={"mode": "temporal", "turn_s": turn_s, "drain": drain})
    active, idle, _ = told(config, profiles.hardware("h100"))
    assert active.startswith("Remapping does not pay here: ")
    assert idle.startswith(f"In turns of {turn_s:g} s idle models lend nothing")
    assert ("unless many requests are preempted: " in idle) is spares
    pooled = "" if spares else ", or use policy pooled"
    assert idle.endswith(f"; make turns longer{pooled}.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"max_percent": 0}, "no model ever gives"), ({"max_percent": 3}, "less than a tenth")],
)
def test_models_that_give_little_or_nothing(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    lines = told(gpu_config(tmp_path, changes), profiles.hardware("gh200"))
    assert len(lines) == 3
    assert lines[0].startswith("Remapping does not pay here: ")
    assert words in lines[0]
    assert "Policy pooled" in lines[1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"kv-cache-dtype": "fp8"},
        {"speculative_config": {"method": "ngram"}},
        {"runner": "pooling"},
    ],
)
def test_arguments_that_change_sizes_leave_them_to_vllm(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="tenant 'chat': its sizes are only vLLM's to tell"):
        subjects(gpu_config(tmp_path, {"engine_args": arguments}), linked(50), 1024)


def test_a_tenant_that_does_not_fit_is_refused_as_check_does(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'code': it does not fit: it needs"):
        subjects(gpu_config(tmp_path, {"share": 10}), linked(50), 1024)


def test_one_unusual_model_leaves_the_others(tmp_path: Path) -> None:
    config = gpu_config(tmp_path)
    other = make_unweighed(tmp_path / "other", {"model_type": "mamba2"})
    changed = config.tenants[0].model_copy(update={"model": other})
    config = config.model_copy(update={"tenants": [changed, config.tenants[1]]})
    known = subjects(config, linked(50), 1024)
    assert [one.tenant.name for one in known.subjects] == ["code"]
    assert "'mamba2'" in known.refused["chat"]


def test_a_batch_that_the_engine_never_runs_does_not_count() -> None:
    hidden = of_batch(subject(), profiles.hardware("gh200"), 128)
    one = Explained("a", "m", 40, 1, 1.0, 37, 16, 1000, 1024, 100, (hidden,))
    assert hidden.kv_blocks > 100
    assert first_worth(one) is None


# -- machines and words -----------------------------------------------------------------


def test_the_nearest_profile_is_taken_and_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.tools.explain.machine._gpu", lambda index: "NVIDIA H200")
    assert machine(None, DeviceSection(kind="cuda", memory=GIB)).name == "h200"
    monkeypatch.setattr("mirage.tools.explain.machine._gpu", lambda index: None)
    gpu = machine(None, DeviceSection(kind="cuda", memory=GIB))
    assert (gpu.name, gpu.why) == nearest(None)
    host = machine(None, DeviceSection(memory=GIB, link_gb_s=0.5))
    assert host.name == "host"
    assert host.hardware.link_gb_s.value == 0.5
    assert (
        machine("a100", DeviceSection(memory=GIB, link_gb_s=0.5)).hardware.link_gb_s.value == 26.3
    )
    own = machine(None, DeviceSection(memory=GIB, profile="h100"))
    assert (own.name, own.why) == ("h100", "device.profile")
    assert own.hardware.link_gb_s.value == 51
    with pytest.raises(ConfigError, match="no hardware profile is named 'x': known are a100, "):
        machine("x", DeviceSection(memory=GIB))


def test_numbers_as_people_read_them() -> None:
    assert [rate(each) for each in (None, 0.0612, 51.04, 142.4, 2391.0)] == [
        *("never", "0.0612", "51", "142", "2,390"),
    ]
    assert [size(each) for each in (0, 3 * 2**20, 25 * 2**28)] == ["0.0 MiB", "3.0 MiB", "6.2 GiB"]
    assert size(9_437_184_000 * 2**20) == "9,000.0 TiB"


def test_batches_each_once() -> None:
    assert parse_batches("8, 1,8") == [8, 1]


MANY = ",".join(map(str, range(1, 34)))


@pytest.mark.parametrize("text", ["", "0", "1,,2", "-1", "1.5", "many", "9999999", MANY])
def test_batches_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--batch"):
        parse_batches(text)


@pytest.mark.parametrize(
    ("gpu", "name", "why"),
    [
        (None, "gh200", "no GPU is here"),
        ("NVIDIA GH200 480GB", "gh200", "for the NVIDIA GH200 480GB that is here"),
        ("NVIDIA H200", "h200", "for the NVIDIA H200 that is here"),
        ("NVIDIA GB200", "gb200", "for the NVIDIA GB200"),
        ("NVIDIA H100 80GB HBM3", "h100", "for the NVIDIA H100"),
        ("NVIDIA A100-SXM4-80GB", "a100", "for the NVIDIA A100"),
        ("NVIDIA L40S", "h100", "no bundled profile is of this machine's NVIDIA L40S"),
    ],
)
def test_the_nearest_gh200goes_by_the_gpu_that_is_here(gpu, name, why):
    found, because = nearest(gpu)
    assert found == name
    assert why in because
    assert profiles.hardware(found).title


# -- what the controller begins with ------------------------------------------------------------


def test_before_its_first_step_an_engine_gives_what_explain_says_of_one_request() -> None:
    one, gh200 = subject(), profiles.hardware("gh200")
    known = MetadataStore(
        [one.tenant], cooldown_s=1.0, profiled={"a": of_model(one.model, gh200, 2048)}
    )
    blind = MetadataStore([one.tenant], cooldown_s=1.0)
    for each in (known, blind):
        each.joined("a", one.shape, 0)
        report = msgspec.structs.replace(each.snapshot(0).tenants[0].report, layer_load_s=LOAD_S)
        each.reported("a", msgspec.structs.replace(report, layer_compute_s=0.0, running=1), 0)
    hidden = [
        hidden_layers(t, t.report.layer_compute_s, Rules())
        for t in (*known.snapshot(0).tenants, *blind.snapshot(0).tenants)
    ]
    assert hidden == [of_batch(one, gh200, 1).layers_remapped, 1] == [4, 1]


def test_a_token_of_a_prompt_costs_its_arithmetic() -> None:
    weights = 40 * (4 * 5120**2 + 2 * 5120 * 20480)
    known, h100 = profiles.model("opt-13b"), profiles.hardware("h100")
    found = of_model(known, h100, 2048)
    attention = 40 * 2 * 2048 * 5120  # half of the prompt on average, keys and values
    assert found.token_s == pytest.approx((2 * weights + attention) / h100.flop_per_s, rel=0.1)


def test_times_are_those_of_the_profile_that_is_named_and_of_models_that_are_known(
    tmp_path: Path,
) -> None:
    config = gpu_config(tmp_path)
    assert profiled(config) == {}
    device = config.device.model_copy(update={"profile": "gh200"})
    other = make_unweighed(tmp_path / "other", {"model_type": "mamba2"})
    first, second = config.tenants
    config = config.model_copy(
        update={
            "device": device,
            "tenants": (first, second.model_copy(update={"model": other})),
        }
    )
    found = profiled(config)
    assert list(found) == [first.name]
    assert found[first.name].step_s == pytest.approx(0.01, rel=0.05)
    bad = device.model_copy(update={"profile": str(tmp_path / "none.yaml")})
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        profiled(config.model_copy(update={"device": bad}))
