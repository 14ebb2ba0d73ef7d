"""`--json`: which commands have it, and that what they print is what docs/watching.md says."""

from __future__ import annotations

import json
import re
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage import cli
from mirage.cli.check import check_command
from mirage.machines.seen import ClusterSeen, ControllerSeen, MachineSeen, ServerSeen, lines
from mirage.printed import json_object
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.ring import digest
from mirage.serve.admin.forms import TenantStatus, TenantsTold, WhyTold
from mirage.serve.apply.forms import ApplyTold

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/watching.md").read_text().partition("## Commands for programs")[2]
DOCUMENTED = {
    found[1].split()[0]: set(re.findall(r"`(\w+)`", found[2]))
    for found in re.finditer(r"^\| `mirage (.+?) --json` \| (.+) \|$", PAGE, re.MULTILINE)
}
WITHOUT_TABLE = {"stop", "fetch", "logs", "top", "replay", "simulate", "profile", "tune"}
"""Commands that print lines, show a screen or write their results to files."""


def function(name: str) -> Any:
    if name == "check":
        return check_command
    module, attribute, _ = cli.OWN_MODULES[name]
    return getattr(import_module(module), attribute)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert not ended.value.code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert next(iter(found)) == "schema_version"
    assert found.keys() - {"schema_version"} <= DOCUMENTED[words[0]]
    return found


def test_each_command_with_a_table_has_it_and_is_on_the_page() -> None:
    names = cli.OWN_MODULES.keys() - WITHOUT_TABLE | {"check"}
    assert names == DOCUMENTED.keys()
    for name in names:
        assert "as_json" in signature(function(name)).parameters, name


@pytest.mark.parametrize(
    ("name", "form"),
    [("ps", TenantsTold), ("tenants", TenantStatus), ("why", WhyTold), ("apply", ApplyTold)],
)
def test_the_keys_of_the_admin_sockets_answers_are_on_the_page(
    name: str, form: type[msgspec.Struct]
) -> None:
    assert set(form.__struct_fields__) - {"what_if"} <= DOCUMENTED[name]


def test_keys_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: ci, sha256: {digest('t')}, models: [a], metrics: true}}]\n")
    file.chmod(0o600)
    (key,) = printed(capsys, "keys", "list", str(file), "--json")["keys"]
    assert (key["name"], key["models"], key["metrics"]) == ("ci", ["a"], True)
    assert set(AccessKey.__struct_fields__) <= DOCUMENTED["keys"]


def test_a_store_of_weights_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "weights", "list", "--store", str(tmp_path / "s"), "--json")
    assert found["store"] == str(tmp_path / "s")
    assert found["models"] == []


def test_traces_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("traces", "list", "azure-code-2023", "--cache", str(tmp_path), "--json")
    (trace,) = printed(capsys, *words)["traces"]
    assert (trace["name"], trace["here"]) == ("azure-code-2023", False)
    assert trace.keys() <= DOCUMENTED["traces"]


def test_a_cluster_is_shown_as_lines_and_as_an_object() -> None:
    silent = ServerSeen(name="router@m", machine="m", router=True, problem="no server answers")
    there = ServerSeen(
        name="left", machine="m", router=False, url="http://x", pid=7, ready=True, lease_left_s=8.6
    )
    controller = ControllerSeen(3, "m", 9, 0.0, ended=False)
    seen = ClusterSeen([MachineSeen("m", "10.0.0.1")], [there, silent], controller)
    assert list(lines(seen)) == [
        "machine m at 10.0.0.1",
        "controller of epoch 3: process 9 on m, since 1970-01-01 00:00:00 UTC",
        "device left on m: http://x, process 7, ready, 9 s of its lease are left",
        "router on m: no server answers",
    ]
    found = json.loads(json_object(1, seen))
    assert found["servers"][0]["lease_left_s"] == 8.6
    assert found["servers"][1]["pid"] is None
    for one in (*found["machines"], *found["servers"], found["controller"], found):
        assert one.keys() - {"schema_version"} <= DOCUMENTED["node"]


@pytest.mark.parametrize(
    "words",
    [
        ("tenants", "stop", "a"),
        ("keys", "new", "a"),
        ("weights", "verify"),
        ("node", "leave"),
        ("traces", "fetch", "azure-code-2023"),
        ("check", "c.yaml", "--upgrade"),
        ("apply", "-f", "c.yaml"),
    ],
)
def test_it_is_refused_where_no_table_is_printed(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--json"])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert "--json" in told.err
    assert not told.out


def test_what_json_does_not_have_is_text_or_null() -> None:
    found = json.loads(json_object(3, {"path": Path("/a"), "most": float("inf")}))
    assert found == {"schema_version": 3, "path": "/a", "most": None}
