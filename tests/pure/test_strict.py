"""Values in all files that are read: one of the wrong type is refused, not converted."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

import mirage
from mirage.config import ConfigError, Strict, load, read_yaml

pytestmark = pytest.mark.pure

for module in pkgutil.walk_packages(mirage.__path__, "mirage."):
    if not module.name.startswith(("mirage.engine", "mirage.machines.ray", "mirage.__main__")):
        importlib.import_module(module.name)


def schemas(of: type[Strict] = Strict) -> Iterator[type[Strict]]:
    for schema in of.__subclasses__():
        yield schema
        yield from schemas(schema)


def kinds(annotation: Any) -> set[Any]:
    """Types that a field may have, taken out of unions and `Annotated`."""
    parts = [part for part in get_args(annotation) if not isinstance(part, str)]
    if not parts or getattr(annotation, "__origin__", None) in (dict, list, tuple):
        return {annotation}
    return set().union(*map(kinds, parts))


def fields(*wanted: type, without: tuple[type, ...] = ()) -> list[Any]:
    found = []
    for schema in sorted(set(schemas()), key=lambda s: f"{s.__module__}.{s.__name__}"):
        for name, field in schema.model_fields.items():
            have = kinds(field.annotation)
            if _reads_text(field) or have & set(without):
                continue
            if have & set(wanted):
                found.append(pytest.param(schema, name, id=f"{schema.__name__}.{name}"))
    return found


def _reads_text(field: FieldInfo) -> bool:
    """True for a field with a validator that reads text, such as a size."""
    inside = [
        part.__metadata__ for part in get_args(field.annotation) if get_origin(part) is Annotated
    ]
    return any(isinstance(each, BeforeValidator) for each in chain(field.metadata, *inside))


def refused(schema: type[Strict], name: str, value: Any) -> bool:
    """True if a validation of `schema` with this value names the field `name` as wrong."""
    with pytest.raises(ValueError, match=f"validation errors? for {schema.__name__}") as error:
        schema.model_validate({name: value})
    return any(one["loc"][:1] == (name,) for one in error.value.errors())  # type: ignore[attr-defined]


NUMBERS = fields(int, float, without=(bool, str))
assert len(NUMBERS) > 60


@pytest.mark.parametrize(("schema", "name"), NUMBERS)
def test_a_number_is_a_finite_number(schema: type[Strict], name: str) -> None:
    values = [True, False, "5", "1e6", float("nan"), float("inf"), [5]]
    assert all(refused(schema, name, value) for value in values)


@pytest.mark.parametrize(("schema", "name"), fields(bool))
def test_a_switch_is_true_or_false(schema: type[Strict], name: str) -> None:
    values = [1, 0, 1.0, "true", "yes", "off"]
    assert all(refused(schema, name, value) for value in values)


@pytest.mark.parametrize(("schema", "name"), fields(str, Path))
def test_text_is_text(schema: type[Strict], name: str) -> None:
    values = [1, 1.5, True]
    assert all(refused(schema, name, value) for value in values)


def test_what_yaml_has_no_type_for_is_read_from_what_it_has() -> None:
    """YAML has no pairs, choices or paths. Fields of these types accept lists and texts, although
    all other fields are strict.
    """
    lax = {param.values for param in fields(Path)}
    for schema in set(schemas()):
        for name, field in schema.model_fields.items():
            own = any(get_origin(kind) is tuple for kind in kinds(field.annotation))
            choices = any(
                issubclass(k, Enum) for k in kinds(field.annotation) if type(k) is type(Enum)
            )
            if own or choices or (schema, name) in lax:
                assert any(getattr(m, "strict", None) is False for m in field.metadata), (
                    schema,
                    name,
                )


TENANT = "{name: a, model: m, share: 50}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tenants: [{name: a, model: m, share: true}]", "tenants.0.share: found true, write a"),
        (
            "tenants: [{name: a, model: m, share: '5'}]",
            "tenants.0.share: found '5', write a number",
        ),
        ("tenants: [{name: a, model: m, share: .nan}]", "tenants.0.share: found nan, write a"),
        ("tenants: [{name: a, model: m, share: 5, priority: true}]", "priority: found true, write"),
        (
            "tenants: [{name: a, model: m, share: 5, max_model_len: .inf}]",
            "found inf, write a",
        ),
        (f"tenants: [{TENANT}]\nremap: {{experts: 1}}", "found 1, write true or false"),
        (f"tenants: [{TENANT}]\nreplay: {{window: [false, 5]}}", "found false, write a number"),
        (f"tenants: [{TENANT}]\nreplay: {{traffic: {{weights: {{a: yes}}}}}}", "found true, write"),
        (f"tenants: [{TENANT}]\npolicy: 1", "found 1, write 'static', 'pooled' or 'mirage'"),
        (f"tenants: [{TENANT}]\nsharing: {{drain: 'false'}}", "write true or false or 'auto'"),
        ("tenants: [{name: a, model: 5, share: 5}]", "tenants.0.model: found 5, write a path"),
    ],
)
def test_it_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"device: {{memory: 1GiB}}\n{text}\n")
    with pytest.raises(ConfigError) as error:
        load(file)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_may_be_written_as_numbers_are(tmp_path: Path) -> None:
    """`1e6` is read as a number, although YAML 1.1 calls it a text."""
    file = tmp_path / "c.yaml"
    file.write_text("a: [1e6, 1E-3, +2e1, .5e1, 1.5, 12, 1e6x, e5, 1_000, '1e6']")
    assert read_yaml(file)["a"] == [1e6, 1e-3, 20, 5, 1.5, 12, "1e6x", "e5", 1000, "1e6"]
