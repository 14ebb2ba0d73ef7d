"""`pip install .` brings what serving imports, and nothing else; the extra `tools` has the rest."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import traces
from mirage import cli
from mirage.config import read_yaml
from mirage.errors import InputRefused

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
OURS = ("mirage", "vmm", "scheduler", "configs", "traces")
SERVING = ("mirage.serve", "mirage.engine", "mirage.doctor", "mirage.cli", "vmm", "scheduler")
BY_VLLM = {"cuda", "jinja2", "tokenizers", "torch", "transformers", "vllm"}
"""Modules that are there wherever an engine runs."""
BY_ANOTHER = {
    "markupsafe": "jinja2",
    "multidict": "aiohttp",
    "pydantic_core": "pydantic",
    "yarl": "aiohttp",
}
RAY = {f"mirage.machines.ray.{name}" for name in ("claim", "connected", "machines")}
"""Modules that are imported by who has joined a cluster: the extra `cluster` has what they need."""
LAZY = {"mirage.workload.formats.pieces", *RAY}
"""Modules that serving can do without; the first is imported when a trace is JSON."""
DISTRIBUTIONS = {
    "huggingface_hub": "huggingface-hub",
    "prometheus_client": "prometheus-client",
    "yaml": "pyyaml",
}
"""Distributions that have another name than their module."""


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ ;\[]", each)[0] for each in requirements}


def sources() -> dict[str, Path]:
    """Paths of our packages' source files by module name."""
    files = [path for folder in OURS for path in (ROOT / folder).rglob("*.py")]
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in files}
    return {".".join(each).removesuffix(".__init__"): path for path, each in parts.items()}


def imports(path: Path) -> Iterator[str]:
    """Names in all import statements of a file: modules, and names imported from modules, which may
    be modules too.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def third_parties(roots: tuple[str, ...], without: Collection[str] = ()) -> set[str]:
    """Third-party packages that the modules below `roots` import, directly or through modules of
    ours. Modules in `without` are not followed.
    """
    files, seen, others = sources(), set[str](without), set[str]()
    waiting = [module for module in files if module.startswith(roots)]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for name in imports(files[module]):
            top = name.partition(".")[0]
            if name in files:
                waiting.append(name)
            elif top not in sys.stdlib_module_names and top not in OURS:
                others.add(top)
    assert len(seen) > 200
    return others


def test_what_serving_needs_is_what_an_installation_brings() -> None:
    needed = {BY_ANOTHER.get(name, name) for name in third_parties(SERVING, LAZY) - BY_VLLM}
    assert {DISTRIBUTIONS.get(n, n) for n in needed} == names(project()["dependencies"])


SIMULATED = """
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from mirage import simulate
from mirage.errors import InputRefused

for name in {tools}:
    sys.modules[name] = None
for module in walk_packages(simulate.__path__, "mirage.simulate."):
    import_module(module.name)

from mirage.simulate.experiment import load
from mirage.simulate.run import run

for file in sys.argv[1:]:
    try:
        print(run(load(Path(file)), "mirage", 0)["completed"])
    except InputRefused as refused:
        print(refused)
"""


def test_the_simulator_needs_nothing_of_the_extra(tmp_path: Path) -> None:
    experiment = read_yaml(ROOT / "configs" / "experiments" / "c1.yaml")
    experiment["tenants"] = experiment["tenants"][:1]
    tenant = {key: value for key, value in experiment["tenants"][0].items() if key != "rate"}
    traced = experiment | {"tenants": [tenant]}
    row = {"timestamp": 0, "input_length": 100, "output_length": 10}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    asked = {
        "drawn": experiment | {"workload": {"arrivals": "poisson", "requests": 20}},
        "csv": traced
        | {"workload": {"arrivals": "trace", "file": str(traces.SAMPLE), "requests": 5}},
        "json": traced | {"workload": {"arrivals": "trace", "file": "rows.jsonl"}},
    }
    files = [str(tmp_path / f"{name}.yaml") for name in asked]
    for file, content in zip(files, asked.values(), strict=True):
        Path(file).write_text(yaml.safe_dump(content))
    code = SIMULATED.format(tools=cli.TOOLS)
    done = subprocess.run(
        [sys.executable, "-c", code, *files], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == ""
    drawn, csv, refused = done.stdout.splitlines()
    assert (int(drawn), int(csv)) == (20, 5)
    assert refused.startswith("a trace in JSON needs ijson: run pip install")


@pytest.mark.slow
def test_all_that_is_imported_is_in_an_extra() -> None:
    extras = project()["optional-dependencies"]
    serving = third_parties(SERVING, LAZY) - BY_VLLM
    needed = {BY_ANOTHER.get(name, name) for name in third_parties(OURS) - serving} - serving
    assert needed - BY_VLLM == {*cli.TOOLS, *cli.TOP, *cli.CLUSTER} - BY_VLLM
    assert set(cli.TOOLS) == names(extras["tools"])
    assert set(cli.TOP) == names(extras["top"])


def test_top_alone_needs_its_extra_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(InputRefused) as refused:
        cli.register_own(["top"])
    assert str(refused.value) == (
        "mirage top needs textual: run pip install '.[top]' in the checkout of MIRAGE"
    )


@pytest.mark.parametrize("command", sorted(set(cli.OWN_MODULES) - cli.SERVING - {"node", "top"}))
def test_a_tool_without_its_packages_says_what_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("optuna", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputRefused) as refused:
        cli.register_own([command])
    assert str(refused.value) == (
        f"mirage {command} needs optuna, scipy: run pip install '.[tools]' in the checkout of "
        "MIRAGE"
    )


def test_a_node_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputRefused, match=r"node needs ray: run pip install '\.\[cluster\]'"):
        cli.register_own(["node"])


WITHOUT_CLUSTER = """
import sys
from importlib import import_module

for name in {absent}:
    sys.modules[name] = None
for name in {modules}:
    import_module(name)
"""


def test_serving_imports_nothing_of_the_cluster() -> None:
    """Modules of serving, those of the controller too, can be imported without Ray, the client of
    Redis, and a package that Ray brings.
    """
    absent = (*cli.CLUSTER, "msgpack")
    rooms = ("mirage.serve", "mirage.machines", "mirage.cli", "mirage.doctor")
    joined = {"mirage.machines.ray.claim", "mirage.machines.ray.machines"}
    modules = sorted(name for name in sources() if name.startswith(rooms) and name not in joined)
    code = WITHOUT_CLUSTER.format(absent=absent, modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_one_minor_version_of_ray_is_what_the_extra_has() -> None:
    told, client = project()["optional-dependencies"]["cluster"]
    assert re.fullmatch(r"ray==\d+\.\d+\.\*", told) and client.startswith("redis>=")
