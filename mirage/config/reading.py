"""YAML file: its text, its content, and that content checked against a schema."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from mirage.errors import InputRefused
from mirage.problems import first_problem, shown

Schema = TypeVar("Schema", bound=BaseModel)
LARGEST_FILE = 2**20
"""Most characters of a YAML file."""
MOST_VALUES = 100_000
"""Most keys and values of a YAML file. Those behind an alias count again wherever it is used."""


class ConfigError(InputRefused):
    """A configuration that cannot be served; the message is one line for the user."""


class Loader(yaml.SafeLoader):
    """YAML's safe loader. It also refuses a key that is written twice, a file with more than
    `MOST_VALUES` keys and values (aliases expanded), and text that no path, command line or request
    body can hold.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if UNUSABLE.search(text):
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(text)} has a null byte or half a character", node.start_mark
            )
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [name for name, times in names.items() if times > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {min(twice)!r} is written twice", node.start_mark
            )
        return dict(super().construct_mapping(node, deep))

    def construct_document(self, node: yaml.Node) -> Any:
        if (values := _values(node, {})) > MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"its aliases stand for {values:.3g} values: use fewer"
            )
        return super().construct_document(node)


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """Number of keys and values under a node, with aliases expanded; inf if a node contains
    itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        children = node.value if isinstance(node, yaml.SequenceNode) else sum(node.value, ())
        known[id(node)] = 1 + sum(_values(child, known) for child in children)
    return known[id(node)]


UNUSABLE = re.compile("[\0\ud800-\udfff]")
FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
"""Pattern of numbers with an exponent. YAML 1.2 reads all of them as numbers; YAML 1.1, which
PyYAML follows, reads some as text, such as ``1e5``.
"""
Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def read_yaml(path: Path) -> dict[Any, Any]:
    """Read the mapping that a YAML file contains. Raises `ConfigError` if the file cannot be read,
    is not YAML, or contains no mapping."""
    return parsed(read_text(path), path)


def parsed(text: str, path: Path | str) -> dict[Any, Any]:
    """Mapping that `text` is in YAML or JSON. Raises `ConfigError`, which names the file at `path`,
    if `text` is neither or no mapping."""
    raw = parsed_value(text, path)
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected keys with values, found {shown(raw)}")
    return raw


def parsed_value(text: str, named: Path | str) -> Any:
    """Content of `text` in YAML. Raises `ConfigError`, which calls the text `named`, if it is no
    YAML, is nested too deeply, or has a value that does not fit its type.
    """
    try:
        return yaml.load(text, Loader)  # a safe one
    except RecursionError:
        raise ConfigError(f"{named}: not read (its values are nested too deeply)") from None
    except (yaml.YAMLError, *ODD_VALUES) as error:
        told = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise ConfigError(f"{named}: not YAML ({told})") from None


ODD_VALUES = (ValueError, LookupError, AttributeError, TypeError, OverflowError)
"""Errors that PyYAML raises for values that do not fit their type: ``2024-13-45``, ``!!int x``."""


def read_text(path: Path) -> str:
    """The text of a file. Raises `ConfigError` if it cannot be read, is not UTF-8, or is longer
    than `LARGEST_FILE` characters.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at {error.start})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"{path}: more than {LARGEST_FILE} characters: name a configuration file")
    return text


def validated(schema: type[Schema], raw: dict[Any, Any], path: Path) -> Schema:
    """Check `raw` against `schema`. Raises `ConfigError`, whose one line names the file at `path`
    and the first wrong value."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error, raw, schema)}") from None
