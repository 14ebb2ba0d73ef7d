"""Our decisions on routes against the installed vLLM: its server with all options,
and its sources.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import must, spawn_anew

from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES, NEWER, ROUTES
from mirage.serve.router.openapi import openapi_text

pytestmark = pytest.mark.engine

ADDING = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    "VLLM_ENABLE_COHERE_API": "1",
}
"""Variables that add routes."""
VERBS = {"get", "post", "put", "delete", "patch", "head", "websocket", "api_route"}
REGISTERING = {*VERBS, "add_api_route", "add_api_websocket_route", "mount"}
BEHIND = {
    *("/v1/load_lora_adapter", "/collective_rpc", "/pause", "/server_info", "/invocations"),
    *("/v1/realtime", "/scale_elastic_ep", "/sleep", "/start_profile", "/tokenizer_info"),
    *("/v1/chat/completions/render", "/v1/chat/completions/derender", "/v1/systemone", "/docs"),
    *("/v1/chat/completions/batch", "/fault_tolerance/apply", "/adapters", "/static"),
}
"""Routes of flags, variables, tasks and packages: if one is not found, not all was asked for."""
ROUTER = Path(__file__).parents[2] / "mirage" / "serve" / "router"
ELSEWHERE = {"/ready", "/readyz"}
"""Routes of other servers of vLLM's: its supervisor of several, and its preloader."""


def written(folder: Path) -> Iterator[str]:
    """Paths of routes in vLLM's sources, whether or not this installation registers them."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr=attr), args=[ast.Constant(value=str(path)), *_]
                ) if attr in REGISTERING and path.startswith("/"):
                    yield path


@pytest.mark.slow
def test_every_route_of_vllms_has_a_decision() -> None:
    answered = json.loads(must(spawn_anew("app_routes.py", environment=ADDING)).splitlines()[-1])
    spec = find_spec("vllm.entrypoints")
    assert spec is not None and spec.submodule_search_locations
    sources = set(written(Path(spec.submodule_search_locations[0])))
    found = {*answered, *sources} - ELSEWHERE
    assert found >= BEHIND
    assert found - ROUTES.keys() == set(), (
        "say in mirage/serve/api/routes.py what is done with them"
    )
    assert ROUTES.keys() - found <= NEWER, "vLLM has these no more"


@pytest.mark.slow
def test_schemas_of_requests_are_those_of_the_installed_vllm(tmp_path: Path) -> None:
    file = tmp_path / "request_schemas.json"
    must(spawn_anew("app_schemas.py", str(file)))
    found, here = file.read_text(), (ROUTER / file.name).read_text()
    if json.loads(found)["vllm"] == json.loads(here)["vllm"]:
        assert here == found, (
            f"make it anew: python tests/engine/app_schemas.py {ROUTER / file.name}"
        )
    else:  # another one than that of the document
        assert json.loads(found)["requests"].keys() >= json.loads(here)["requests"].keys()


def test_the_document_refers_to_what_it_has() -> None:
    document = json.loads(openapi_text())
    assert document["paths"].keys() >= {*JSON_ROUTES, *FORM_ROUTES}
    referred = set(re.findall(r"#/components/schemas/(\w+)", openapi_text().decode()))
    assert referred <= document["components"]["schemas"].keys()
