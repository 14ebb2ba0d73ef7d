"""The files in `configs/`, sizes that can be looked up, and what is refused in one line."""

from __future__ import annotations

import pytest
import yaml

import configs
from mirage import profiles
from mirage.config import ConfigError
from mirage.geometry import footprint
from mirage.profiles import MIB, Sourced, shape
from mirage.simulate import build, workload
from mirage.simulate.experiment import Experiment, Setup, load
from mirage.workload.trace import TraceError

pytestmark = pytest.mark.pure

HARDWARE = sorted(path.stem for path in (configs.HERE / "hardware").glob("*.yaml"))
MODELS = sorted(path.stem for path in (configs.HERE / "models").glob("*.yaml"))
PUBLISHED = {
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-6.7b": 6_658_473_984,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
}
"""Number of parameters of each model, as model cards state it."""
TRACE = {"arrivals": "trace", "file": "nowhere.csv"}


def experiment(**changes) -> dict:
    tenants = [{"name": "a", "model": "opt-13b", "share": 45, "rate": 1}]
    workload = {"requests": 10, "lengths": "sharegpt"}
    return {"title": "t", "tenants": tenants, "workload": workload} | changes


def refusal(raw: dict) -> str:
    """The single line with which the experiment `raw` is refused."""
    with pytest.raises(ConfigError) as found:
        Setup(Experiment.model_validate(raw))
    assert "\n" not in str(found.value)
    return str(found.value)


def file_refusal(tmp_path, raw: dict) -> str:
    """The single line with which the experiment `raw` in a file is refused; it names the file."""
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError) as found:
        load(path)
    assert "\n" not in str(found.value) and "experiment.yaml" in str(found.value)
    return str(found.value)


def opt_13b(hardware="gh200", max_len=2048, parts=1):
    device = profiles.hardware(hardware)
    return shape(profiles.model("opt-13b"), device, 16, max_len, device.memory_bytes, parts)


# -- files ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HARDWARE)
def test_every_hardware_figure_has_a_source(name) -> None:
    device = profiles.hardware(name)
    figures = [value for _, value in device if isinstance(value, Sourced)]
    assert len(figures) == len(type(device).model_fields) - 2, "all but the title and the tiers"
    below = [tier for _, tier in device.tiers or () if tier is not None]
    figures += [value for tier in below for _, value in tier]
    assert all(len(figure.source.split()) >= 2 for figure in figures)
    assert device.link_mixed_gb_s.value <= device.link_gb_s.value < device.bandwidth_gb_s.value


@pytest.mark.parametrize("name", MODELS)
def test_every_model_shape_has_a_source(name) -> None:
    assert len(profiles.model(name).source.split()) >= 2


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name) -> None:
    model = profiles.model(name)
    assert "config.json" in model.source
    assert model.parameter_bytes == pytest.approx(2 * PUBLISHED[name], rel=2e-3)


@pytest.mark.parametrize("name", ["c1", "c2"])
def test_every_bundled_experiment_is_accepted(name) -> None:
    assert load(configs.HERE / "experiments" / f"{name}.yaml").shapes


def test_a_decoding_batch_is_another_commands(tmp_path) -> None:
    assert "run python -m benchmarks.decode " in file_refusal(tmp_path, experiment(decode={}))


@pytest.mark.parametrize("name", ["sharegpt", "alpaca", "long", "short", "tierkv"])
def test_lengths_are_named(name) -> None:
    assert workload.lengths(name).output_mean > 0


# -- sizes ------------------------------------------------------------------------------


def test_opt_13b_has_extents_of_four_blocks_and_fifty_mebibytes() -> None:
    made = opt_13b()
    assert (made.extent_blocks, made.extent_bytes) == (4, 50 * MIB)
    assert made.layers == 40
    assert made.min_extents == 33, "128 blocks and the null block"


def test_llama_3_8b_has_extents_of_one_block_and_two_mebibytes() -> None:
    device = profiles.hardware("gh200")
    made = shape(profiles.model("llama-3-8b"), device, 16, 8192, device.memory_bytes)
    assert (made.extent_blocks, made.extent_bytes) == (1, 2 * MIB)


@pytest.mark.parametrize("block_tokens", [1, 16, 48])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_all_sizes_are_whole_pages_and_extents_the_smallest(name, parts, block_tokens) -> None:
    device, model = profiles.hardware("gh200"), profiles.model(name)
    made = shape(model, device, block_tokens, 1024, device.memory_bytes, parts)
    page, block = device.page_bytes, block_tokens * model.kv_token_bytes
    for size in (made.layer_bytes, made.fixed_bytes, made.extent_bytes):
        assert size % page == 0
    assert made.extent_bytes == made.extent_blocks * block
    assert not any(blocks * block % page == 0 for blocks in range(1, made.extent_blocks))
    assert (made.min_extents * made.extent_blocks - 1) * block_tokens >= 1024
    assert ((made.min_extents - 1) * made.extent_blocks - 1) * block_tokens < 1024
    assert made.max_extents * made.extent_bytes <= device.memory_bytes


@pytest.mark.parametrize("name", MODELS)
def test_a_model_costs_its_parameters_and_the_reserve(name) -> None:
    device, model = profiles.hardware("gh200"), profiles.model(name)
    made = shape(model, device, 16, 1024, device.memory_bytes)
    exact = model.parameter_bytes + device.reserved_mb.value * 1e6
    pages = (made.layers + 1) * device.page_bytes
    assert exact <= footprint(made, 0, 0) <= exact + pages


def test_parts_cut_layers_not_the_model() -> None:
    whole, cut = opt_13b(), opt_13b(parts=4)
    assert cut.layers == 4 * whole.layers
    assert whole.layer_bytes <= 4 * cut.layer_bytes <= whole.layer_bytes + 4 * 2 * MIB


# -- refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hardware": "gh20"}, ["'gh20'", "gh200"]),
        ({"policies": ["mirag"]}, ["'mirag'", "mirage"]),
        (
            {"tenants": [{"name": "a", "model": "opt-1", "share": 45, "rate": 1}]},
            ["'opt-1'", "opt-13b"],
        ),
        (
            {"tenants": [{"name": "a", "model": "opt-13b", "share": 45}]},
            ["'a'", "rate"],
        ),
        (
            {"tenants": [{"name": "a", "model": "opt-13b", "share": 45, "rate": 1}] * 2},
            ["'a'", "twice"],
        ),
        (
            {
                "tenants": [
                    {"name": name, "model": "opt-13b", "share": 51, "rate": 1} for name in "ab"
                ]
            },
            ["102 %"],
        ),
        (
            {"tenants": [{"name": "a", "model": "opt-13b", "share": 26, "rate": 1}]},
            ["'a'", "26 %", "max_model_len"],
        ),
    ],
    ids=["hardware", "policy", "model", "rate", "names", "shares", "fit"],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, changes, named) -> None:
    for line in (refusal(experiment(**changes)), file_refusal(tmp_path, experiment(**changes))):
        assert all(part in line for part in named), line


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"title": None}, "title"),
        ({"hardwar": "gh200"}, "'hardwar'"),
        ({"link_gb_s": 0}, "link_gb_s"),
        ({"report_s": -1}, "-1"),
        ({"layer_sets": "odd"}, "'odd'"),
        ({"layer_parts": 0}, "layer_parts"),
        ({"workload": {"requests": 1.5}}, "1.5"),
        ({"workload": {}}, "requests"),
        ({"workload": {"arrivals": "trace"}}, "file"),
        (
            {"workload": {"requests": 3, "file": "x.csv"}},
            "file works only with arrivals: trace or windows",
        ),
        ({"workload": {"requests": 3, "rate": 5}}, "rate works only with a file of a trace"),
        (
            {"workload": {"requests": 3, "trace_format": "azure"}},
            "trace_format works only with a file of a trace",
        ),
        ({"workload": TRACE | {"trace_format": "azur"}}, "choose from azure, burstgpt"),
        ({"workload": {"requests": 10**9}}, "stream a trace"),
        ({"workload": {"requests": 9, "peak": {"requests": 9, "factor": 2}}}, "peak.requests 9"),
        ({"sharing": {"turn_s": 1e300}}, "turn_s"),
        ({"remap": {"hysteresis_s": 1e300}}, "hysteresis_s"),
        ({"remap": {"decode_cap": False}}, "unknown key 'remap.decode_cap'"),
        ({"ablations": {"stream_slots": 1}}, "unknown key 'ablations'"),
        ({"report_s": 1e300}, "report_s"),
        ({"pipeline": "odd"}, "'odd'"),
        ({"link_mixed_gb_s": 0}, "link_mixed_gb_s"),
        ({"workload": {"arrivals": "trac", "requests": 1}}, "'trac'"),
        ({"sharing": {"mode": "temporal", "isolated": True}}, "isolated"),
        ({"limits": {"block_tokens": 0}}, "block_tokens"),
        ({"tenants": []}, "tenants"),
        ({"tenants": [{"name": "a b", "model": "opt-13b", "share": 45}]}, "'a b'"),
        ({"tenants": [{"name": "a", "model": "opt-13b", "share": 0}]}, "share"),
        ({"step_overhead_ms": float("nan")}, "step_overhead_ms"),
    ],
)
def test_a_bad_value_is_named_in_one_line(tmp_path, changes, named) -> None:
    assert named in file_refusal(tmp_path, experiment(**changes))


def test_unknown_lengths_are_refused_before_anything_runs() -> None:
    line = refusal(experiment(workload={"requests": 3, "lengths": "sharegp"}))
    assert "'sharegp'" in line and "sharegpt" in line


def test_unknown_lengths_of_one_tenant_are_refused_too() -> None:
    tenants = [{"name": "a", "model": "opt-13b", "share": 45, "rate": 1, "lengths": "sharegp"}]
    assert "'sharegp'" in refusal(experiment(tenants=tenants))


UNRATED = [{"name": "a", "model": "opt-13b", "share": 45}]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workload": TRACE}, "'a': rate changes nothing"),
        ({"workload": TRACE, "tenants": [UNRATED[0] | {"lengths": "alpaca"}]}, "'a': lengths"),
        ({"workload": TRACE | {"lengths": "alpaca"}}, "lengths changes nothing"),
        ({"workload": {"requests": 3, "time_scale": 2}}, "time_scale changes nothing"),
        ({"workload": {"requests": 3, "traffic": {"hot_share": 0.5}}}, "traffic changes nothing"),
    ],
)
def test_a_key_that_would_change_nothing_is_refused(tmp_path, changes, named) -> None:
    assert named in file_refusal(tmp_path, experiment(**changes))


def test_a_trace_that_is_not_there_is_named_in_one_line(tmp_path) -> None:
    raw = experiment(workload=TRACE, tenants=UNRATED)
    made = Setup(Experiment.model_validate(raw), tmp_path)
    with pytest.raises(TraceError) as found:
        build.world(made, made.variants[0], 0)
    assert "nowhere.csv" in str(found.value) and "\n" not in str(found.value)


def test_a_weight_for_nobody_is_refused() -> None:
    """A traffic weight for a tenant that does not exist is refused, as `mirage replay` does."""
    raw = TRACE | {"traffic": {"weights": {"nobody": 2}}}
    assert "'nobody'" in refusal(experiment(workload=raw, tenants=UNRATED))


def test_a_share_that_leaves_one_request_no_kv_is_refused_and_one_page_more_is_not() -> None:
    device, made = profiles.hardware("gh200"), opt_13b()
    enough = footprint(made, 0, made.min_extents) / device.memory_bytes * 100
    for share, fits in ((enough + 1e-5, True), (enough - 1e-3, False)):
        raw = experiment(
            tenants=[{"name": "a", "model": "opt-13b", "share": share, "rate": 1}],
        )
        if fits:
            assert Setup(Experiment.model_validate(raw))
        else:
            assert "raise its share" in refusal(raw)


def test_under_isolation_each_wall_is_measured_as_well() -> None:
    tenants = [
        {"name": "a", "model": "opt-13b", "share": 60, "rate": 1},
        {"name": "b", "model": "opt-13b", "share": 26, "rate": 1},
    ]
    assert "'b'" in refusal(experiment(tenants=tenants, sharing={"isolated": True}))


@pytest.mark.parametrize(("kind", "schema"), [("hardware", "page_mib"), ("models", "layers")])
def test_a_profile_file_of_ones_own_is_found_beside_the_experiment(tmp_path, kind, schema) -> None:
    name = {"hardware": "gh200", "models": "opt-13b"}[kind]
    raw = yaml.safe_load((configs.HERE / kind / f"{name}.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    found = getattr(profiles, kind.rstrip("s"))("mine.yaml", tmp_path)
    assert found == getattr(profiles, kind.rstrip("s"))(name)
    del raw[schema]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError, match=rf"mine\.yaml: {schema}"):
        getattr(profiles, kind.rstrip("s"))("mine.yaml", tmp_path)


def test_a_figure_without_a_source_is_refused(tmp_path) -> None:
    raw = yaml.safe_load((configs.HERE / "hardware" / "gh200.yaml").read_text())
    raw["link_gb_s"] = {"value": 427}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError, match=r"link_gb_s\.source"):
        profiles.hardware("mine.yaml", tmp_path)


def test_an_experiment_overrides_the_link_and_the_overhead() -> None:
    made = Setup(Experiment.model_validate(experiment(link_gb_s=60, step_overhead_ms=8)))
    assert made.hardware.link_gb_s.value == made.hardware.link_mixed_gb_s.value == 60
    assert made.hardware.step_overhead_ms.value == 8
