"""LoRA adapters in `engine_args`: their names and paths are read, and refused if vLLM would refuse
them or if two names are equal.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from model_folder import make_adapter

from mirage.config import Config
from mirage.serve.adapting.adapters import adapters_of, beside, check

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({}, {}),
        ({"lora_modules": []}, {}),
        ({"lora_modules": None}, {}),
        ({"lora_modules": ["a=x/y", "b=z"]}, {"a": "x/y", "b": "z"}),
        ({"lora-modules": "a=x=y"}, {"a": "x=y"}),
        ({"--lora-modules": ["a=x"]}, {"a": "x"}),
        ({"lora_modules": ['{"name": "a", "path": "x", "base_model_name": "m"}']}, {"a": "x"}),
        ({"lora_modules": [{"name": "a", "path": "x,y"}, ""]}, {"a": "x,y"}),
    ],
)
def test_names_and_paths_are_read_as_vllm_reads_them(
    written: dict[str, Any], found: dict[str, str]
) -> None:
    assert adapters_of(written) == found


@pytest.mark.parametrize(
    "item", ["a", "=x", "a=", "a=x,y", "[1]", '{"name": "a"}', {"name": "a", "path": 3}, 7]
)
def test_what_vllm_would_refuse_is_refused_by_its_text(item: Any) -> None:
    with pytest.raises(ValueError, match=r"lora_modules has .*: write name=path"):
        adapters_of({"lora_modules": [item]})


def config(folder: Path, **modules: list[Any]) -> Config:
    tenants = [
        {
            "name": name,
            "model": "m",
            "share": 10,
            "engine_args": {"enable_lora": True, "lora_modules": written},
        }
        for name, written in modules.items()
    ]
    content = {"device": {"memory": "1MiB"}, "tenants": tenants}
    return beside(Config.model_validate(content), folder)


def adapter(folder: Path, name: str, **changes: Any) -> str:
    make_adapter(folder / name, **changes)
    return name


def test_paths_are_beside_the_configuration_and_reach_vllm_as_json(tmp_path: Path) -> None:
    adapter(tmp_path, "x")
    other = {"name": "b", "path": str(tmp_path / "x"), "is_3d_lora_weight": True}
    made = config(tmp_path, m=["a=x", other])
    path = str(tmp_path / "x")
    assert check(made) == ({"m": {"a": path, "b": path}}, {})
    sent = made.tenants[0].engine_args["lora_modules"]
    assert [json.loads(word) for word in sent] == [{"name": "a", "path": path}, other]


def refusal(made: Config) -> str:
    """Message about the only tenant of `made` that is refused, after its name."""
    found, refused = check(made)
    assert found.keys() | refused.keys() == {tenant.name for tenant in made.tenants}
    ((name, why),) = refused.items()
    return f"tenant {name!r}: {why}"


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"m": ["a=x", "a=x"]}, "tenant 'm': lora_modules names 'a' twice"),
        ({"m": ["a=x"], "n": ["a=x"]}, "tenant 'n': adapter 'a' has the name of an adapter of "),
        ({"m": ["n=x"], "n": []}, "tenant 'm': adapter 'n' has the name of tenant 'n': rename"),
        ({"m": ["m=x"]}, "tenant 'm': adapter 'm' has the name of tenant 'm'"),
        ({"m": ["a=nowhere"]}, "tenant 'm': adapter 'a': no adapter_config.json in /"),
    ],
)
def test_what_could_not_be_told_apart_is_refused(
    tmp_path: Path, modules: dict[str, list[Any]], words: str
) -> None:
    adapter(tmp_path, "x")
    assert words in refusal(config(tmp_path, **modules))


def test_an_adapter_has_the_name_of_no_alias(tmp_path: Path) -> None:
    made = config(tmp_path, m=["gpt:4o=" + adapter(tmp_path, "x")], n=[])
    other = made.tenants[1].model_copy(update={"aliases": ["gpt:4o"]})
    named = made.model_copy(update={"tenants": [made.tenants[0], other]})
    words = "tenant 'm': adapter 'gpt:4o' has the name of an alias of tenant 'n': rename it"
    assert refusal(named) == words


def test_adapters_without_enable_lora_are_refused(tmp_path: Path) -> None:
    made = config(tmp_path, m=["a=" + adapter(tmp_path, "x")])
    tenant = made.tenants[0]
    arguments = {k: v for k, v in tenant.engine_args.items() if k != "enable_lora"}
    off = made.model_copy(
        update={"tenants": [tenant.model_copy(update={"engine_args": arguments})]}
    )
    assert "set engine_args.enable_lora true" in refusal(off)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r": None}, "adapter_config.json: r: found nothing, write a whole number"),
        ({"r": "4"}, "adapter_config.json: r: found '4', write a whole number"),
        ({"r": 20}, "its rank is 20: set engine_args.max_lora_rank to 32"),
        ({"r": 600}, "its rank is 600, and vLLM takes 512 at most"),
        ({"rank_pattern": {"q_proj": 64}}, "its rank is 64: set engine_args.max_lora_rank to 64"),
        ({"rank_pattern": {"q_proj": None}}, "rank_pattern.q_proj: found nothing"),
    ],
)
def test_an_adapter_that_vllm_could_not_load_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    made = config(tmp_path, m=["a=" + adapter(tmp_path, "x", **changes)])
    assert words in refusal(made)


def test_an_odd_adapter_refuses_its_tenant_alone(tmp_path: Path) -> None:
    odd, good = adapter(tmp_path, "x", r=None), adapter(tmp_path, "y")
    found, refused = check(config(tmp_path, m=["a=" + odd], n=["b=" + good]))
    assert [*found] == ["n"] and [*refused] == ["m"]


def test_an_adapter_without_weights_is_refused(tmp_path: Path) -> None:
    made = config(tmp_path, m=["a=" + adapter(tmp_path, "x")])
    (tmp_path / "x" / "adapter_model.safetensors").unlink()
    assert "no adapter_model.safetensors in /" in refusal(made)


def test_a_larger_rank_is_fine_where_the_engine_is_told(tmp_path: Path) -> None:
    made = config(tmp_path, m=["a=" + adapter(tmp_path, "x", r=32)])
    tenant = made.tenants[0]
    told = tenant.model_copy(update={"engine_args": tenant.engine_args | {"max_lora_rank": 32}})
    assert not check(made.model_copy(update={"tenants": [told]}))[1]
