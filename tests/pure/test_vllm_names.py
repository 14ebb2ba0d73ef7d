"""vLLM's names that our sources use, against tables of what each vLLM version has."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

from mirage.doctor.names.agreement import names, problems
from mirage.doctor.names.hooks import hooked
from mirage.doctor.names.page import page
from mirage.doctor.names.reading import gather
from mirage.doctor.names.signature import (
    CallArguments,
    said,
    signature,
    why_no_replacement,
    why_not_called,
)
from mirage.doctor.names.syntax import Function
from mirage.doctor.names.tables import once, table
from mirage.doctor.names.tree import Tree
from mirage.doctor.names.uses import Need
from mirage.vllm_hooks import given
from mirage.vllm_hooks.versions import minors, tables
from tests.newest import installed
from tests.vllm_names import needs, version

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
RENEW = "renew the tables (make names) if the name is new to us; else mend our use of it"


@pytest.fixture(scope="module")
def all_needs() -> list[Need]:
    return needs()


@pytest.mark.parametrize("number", tables())
def test_our_sources_fit_each_vllm_that_was_seen(number: str, all_needs: list[Need]) -> None:
    seen = tables()
    unfit = problems(all_needs, seen[number].get, once(seen.values()))
    assert not unfit, "\n".join([f"vLLM {number}:", *unfit, RENEW])


@pytest.mark.slow
def test_the_table_is_what_the_installed_vllm_has(all_needs: list[Need]) -> None:
    folder = installed().parent
    assert dict(table(all_needs, Tree(folder).said)) == tables()[version(folder)], RENEW


def test_the_allowed_range_ends_at_the_last_version_seen() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    seen = minors(tables())
    major, minor = seen[-1].split(".")
    assert f"vllm>={seen[0]},<{major}.{int(minor) + 1}" in extras["vllm"]


def test_the_page_of_hooks_is_what_sources_and_tables_say() -> None:
    written = (ROOT / "docs" / "vllm-hooks.md").read_text()
    assert written == page(), "make it anew: python -m mirage.doctor.names.page docs/vllm-hooks.md"


@pytest.mark.parametrize(("what", "name"), given.every().items())
def test_what_vllm_is_given_by_name_is_there(what: str, name: str) -> None:
    module, own = given.parted(name)
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    assert own in {node.name for node in tree.body if isinstance(node, Function | ast.ClassDef)}


# -- how sources are read -------------------------------------------------------------------

THEIRS = {
    "core/__init__.py": "from .pool import *\nfrom .pool import Pool as Basin",
    "core/pool.py": """
        from dataclasses import dataclass
        class Base:
            def __init__(self, size): self.free = size
            def drop(self, block): ...
        class Pool(Base):
            limit: int = 3
            def take(self, count, *, later=False): ...
            @property
            def usage(self): ...
            @classmethod
            def of(cls, size): ...
            @staticmethod
            def none(): ...
        @dataclass
        class Plan:
            size: int
            name: str = ""
        def make(size: int, kind: str = "a", *rest, deep: bool = False, **more): ...
        pool: Pool = make(3)
    """,
    "moved/here.py": "def find(what, where): ...",
}


def laid(folder: Path, files: dict[str, str]) -> Path:
    """Write the files of a package `vllm` into a folder; return the folder."""
    for name, text in files.items():
        file = folder / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return folder


def unfit(folder: Path, source: str, files: dict[str, str] = THEIRS, known: str = "") -> list[str]:
    """Names of vLLM in `source` that the vLLM made of `files` does not have in that form, with the
    reasons.
    """
    laid(folder, files)
    found = gather({"ours/engine.py": dedent(source)})
    once = {name: "" for name in names(found.all_needs()) if known and known in name}
    lines = problems(found.all_needs(), Tree(folder).said, once.get)
    return [line.rpartition(" (")[0].removeprefix("vllm.") for line in lines]


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("core", "<module>"),
        ("core:pool", "<module>"),
        ("core.pool:make", "size, kind=..., *rest, deep=..., **more"),
        ("core:make", "size, kind=..., *rest, deep=..., **more"),
        ("core:Basin", "size"),
        ("core.pool:Plan", "size, name=..."),
        ("core.pool:Pool.take", "self, count, *, later=..."),
        ("core.pool:Pool.drop", "self, block"),
        ("core.pool:Pool.of", "size"),
        ("core.pool:Pool.none", ""),
        ("core.pool:Pool.usage", "<value>"),
        ("core.pool:Pool.free", "<value>"),
        ("core.pool:Pool.limit", "<value>"),
        ("core.pool:pool", "<value>"),
        ("core.pool:pool.drop", "block"),
        ("core.pool:Pool.gone", None),
        ("core.pool:pool.gone", None),
        ("core.lake", None),
        ("core.lake:Lake", None),
        ("*:usage", "<value>"),
        ("*:limit", "<value>"),
        ("*:gone", None),
    ],
)
def test_names_are_found_where_python_finds_them(
    name: str, there: str | None, tmp_path: Path
) -> None:
    whole = name if name.startswith("*") else f"vllm.{name}"
    assert Tree(laid(tmp_path, THEIRS)).said(whole) == there


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("from vllm.core import make\nmake(1, deep=True)", []),
        ("from vllm.core import made", ["core:made is not there"]),
        ("def ours():\n    from vllm.core import make\nmake = len\nmake()", []),
        ("async def ours():\n    from vllm.core import make\nmake = len\nmake()", []),
        ("import vllm.lake", ["lake is not there"]),
        ("WORKER = 'vllm.core.lake'", ["core.lake is not there"]),
        (
            "from vllm.moved.here import find\nfind(1)",
            ["moved.here:find(what, where): missing a required argument: 'where'"],
        ),
        (
            "from vllm.core.pool import Plan\nPlan(size=1, depth=2)",
            ["core.pool:Plan(size, name=...): got an unexpected keyword argument 'depth'"],
        ),
        ("from vllm.core.pool import Pool\nPool.gone", ["core.pool:Pool.gone is not there"]),
        ("from vllm.core.pool import pool\npool.drop(1)", []),
        (
            "from vllm.core.pool import pool\npool.drop()",
            ["core.pool:pool.drop(block): missing a required argument: 'block'"],
        ),
        ("from vllm.core import pool\npool.make = lambda *a, **k: 0", []),
        (
            "from vllm.core import pool\ndef made(size): ...\npool.make = made",
            [
                "core:pool.make(size, kind=..., *rest, deep=..., **more): "
                "ours: too many positional arguments"
            ],
        ),
    ],
)
def test_uses_that_do_not_fit_are_named(source: str, lines: list[str], tmp_path: Path) -> None:
    assert unfit(tmp_path, source) == lines


CLASS = """
from vllm.core.pool import Pool
class Ours(Pool):
    mine = 1
    def take(self, {parameters}):
        self.mine
        return super().take({arguments})
    def also(self):
        self.take(1)
        self.{attribute}
"""


@pytest.mark.parametrize(
    ("parameters", "arguments", "attribute", "line"),
    [
        ("count, *, later=False", "count, later=later", "usage", None),
        ("*args, **kwargs", "*args, **kwargs", "free", None),
        ("count, *, later=False", "count, later, 3", "usage", "too many positional arguments"),
        ("count", "count", "usage", "ours: got an unexpected keyword argument 'later'"),
        (
            "number, *, later=False",
            "number",
            "usage",
            "ours: missing a required argument: 'number'",
        ),
        (
            "count, other, *, later=False",
            "count",
            "usage",
            "ours: missing a required argument: 'other'",
        ),
        ("count, *, later=False", "count", "volume", "core.pool:Pool.volume is not there"),
    ],
)
def test_overrides_fit_what_they_override(
    parameters: str, arguments: str, attribute: str, line: str | None, tmp_path: Path
) -> None:
    source = CLASS.format(parameters=parameters, arguments=arguments, attribute=attribute)
    (*found,) = unfit(tmp_path, source)
    assert (line is None) == (not found)
    assert all(line in each for each in found)  # type: ignore[operator]


def test_an_override_of_what_python_passes_the_class_is_held_against_it(tmp_path: Path) -> None:
    source = """
        from vllm.core.pool import Pool
        class Ours(Pool):
            @classmethod
            def of(cls, {parameters}): ...
            @property
            def usage(self): ...
    """
    assert unfit(tmp_path, source.format(parameters="size")) == []
    (line,) = unfit(tmp_path, source.format(parameters="size, unit"))
    assert line == "core.pool:Pool.of(size): ours: missing a required argument: 'unit'"


def test_an_override_of_what_is_gone_is_named(tmp_path: Path) -> None:
    source = "from vllm.core.pool import Pool\nclass Ours(Pool):\n    def flush(self): ..."
    assert unfit(tmp_path, source) == [], "it may be ours alone"
    assert unfit(tmp_path, source, known=":Pool.flush") == ["core.pool:Pool.flush is not there"]


def test_a_mixin_is_held_against_the_base_of_the_class_that_has_it(tmp_path: Path) -> None:
    source = """
        from typing import TYPE_CHECKING, Any
        from vllm.core.pool import Pool
        Mixable: Any = Pool if TYPE_CHECKING else object
        class Mixin(Mixable):
            def take(self, *args, **kwargs):
                self.inner()
                return super().take(*args, **kwargs)
        class Outer(Mixin):
            def inner(self):
                self.volume()
        class Ours(Outer, Pool): ...
    """
    assert unfit(tmp_path, source) == ["core.pool:Pool.volume is not there"]


def test_a_class_that_is_made_is_held_against_its_own_base_too(tmp_path: Path) -> None:
    """A class of ours extends a class of vLLM, and calls a method that only a second base of
    another class has. It is a fault only where the first class itself is made.
    """
    source = """
        from vllm.core.pool import Base, Pool
        class Ours(Base):
            def take(self, count, *, later=False):
                return super().take(count)
        class Other(Ours, Pool): ...
        def make(pooled):
            if pooled:
                return Other(3)
            {made}
    """
    assert unfit(tmp_path, source.format(made="")) == []
    (line,) = unfit(tmp_path, source.format(made="return Ours(3)"))
    assert line == "core.pool:Base.take is not there"


MOVED = """
def find(what):
    try:
        from vllm.moved.here import find
    except ImportError:
        from vllm.moved.there import find
        return find(what)
    else:
        return find(what, {where})
"""


def test_one_of_two_places_has_to_fit(tmp_path: Path) -> None:
    there = {"moved/there.py": "def find(what): ..."}
    assert unfit(tmp_path / "here", MOVED.format(where="what")) == []
    assert unfit(tmp_path / "there", MOVED.format(where="what"), there) == []
    assert len(unfit(tmp_path / "nowhere", MOVED.format(where="what"), {"a.py": ""})) == 2
    (line,) = unfit(tmp_path / "otherwise", MOVED.format(where="what, 3"))
    assert line == "moved.here:find(what, where): too many positional arguments"


def test_names_of_objects_are_held_against_the_classes_that_are_named_for_them() -> None:
    said = {"vllm.a:Rows.gather": "self, index, out=..., computed=...", "vllm.a:Rows.rows": "<v>"}
    hooks = {"vllm.a:Rows": ("rows", "gather(index, out, ...)")}
    assert problems(hooked(hooks, "x"), said.get, said.get) == []
    moved = {**said, "vllm.a:Rows.gather": "self, out=..., index=..."}
    (line,) = problems(hooked(hooks, "x"), moved.get, said.get)
    assert "'out' has the place of 'index'" in line


def test_a_function_given_to_an_object_has_to_take_what_theirs_does() -> None:
    source = """
        def wrap(tables):
            def gathered({parameters}): ...
            tables.gather = gathered
    """
    said = {"vllm.a:Rows.gather": "self, index, out=..., computed=..."}
    hooks = {"vllm.a:Rows": ("gather(index, out, ...)",)}
    for parameters, fits in (("index, out=None", False), ("index, out=None, *a, **k", True)):
        found = gather({"ours/engine.py": dedent(source.format(parameters=parameters))})
        lines = problems(hooked(hooks, "x", found.replaced), said.get, said.get)
        assert (not lines) == fits, lines


@pytest.mark.parametrize(
    "parameters",
    ["", "a", "self, a, /, b=..., *c, d, e=..., **f", "*, a=...", "**kwargs", "a=..., *, b"],
)
def test_parameters_are_read_as_they_are_said(parameters: str) -> None:
    node = ast.parse(f"def f({parameters.replace('...', '7')}): ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    assert said(node.args) == parameters
    given = [
        str(each).replace("Ellipsis", "...") for each in signature(parameters).parameters.values()
    ]
    assert ", ".join(given) == parameters.replace("/, ", "").replace("*, ", "")


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        ("a, b=...", "a, b=...", None),
        ("a, b=...", "*args, **kwargs", None),
        ("a, b=...", "a, *args, **kwargs", None),
        ("a, b=...", "a, *args, b=..., **kwargs", None),
        ("a, b=...", "a, **kwargs", "too many positional arguments"),
        ("a, b=...", "a", "too many positional arguments"),
        ("a, b=...", "b=..., a=...", "'b' has the place of 'a'"),
        ("a, b=...", "a, b", "missing a required argument: 'b'"),
        ("a, /", "b", None),
        ("a", "b", "missing a required argument: 'b'"),
        ("a", "a, /", "'a' parameter is positional only, but was passed as a keyword"),
        ("*, a", "*, a", None),
        ("*, a", "a, b=...", None),
        ("*, a", "", "got an unexpected keyword argument 'a'"),
        ("a, *b", "a, b=...", None),
        ("*args", "", "too many positional arguments"),
        ("**kwargs", "a=...", "got an unexpected keyword argument 'more kwargs'"),
    ],
)
def test_a_stand_in_takes_every_call(theirs: str, ours: str, why: str | None) -> None:
    assert why_no_replacement(theirs, ours) == why


def test_a_call_with_more_to_it_is_held_against_what_is_known_of_it() -> None:
    assert why_not_called("a, b", CallArguments(("",), more=True)) is None
    assert why_not_called("a, b", CallArguments(("",), ("c",), more=True)) is not None
    assert why_not_called("a, b", CallArguments(("", "", ""), more=True)) is not None
