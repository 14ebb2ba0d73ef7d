"""OpenAPI document of the router's routes, with vLLM's own schemas of requests.

The schemas are data (`request_schemas.json`), which `tests/engine/app_schemas.py` takes from vLLM.
A route that vLLM has only for pooling models is listed without a schema.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES, OTHERS, ROUTES, RouteWay
from mirage.serve.overview.page import OVERVIEW_ROUTE, PAGE_ROUTE
from mirage.serve.registry import history

OWN_PATH = "/openapi.json"
READ = {
    "/live": "200 as long as the server runs",
    "/ready": "200 if a request may be served",
    "/health": "the health of all tenants",
    "/health/{model}": "the health of one tenant",
    "/metrics": "metrics in Prometheus's form",
    "/v1/models": "all tenants, with aliases and adapters",
    "/v1/models/{model}": "one of them",
    "/mirage/state": "the newest sample of all tenants",
    history.ROUTE: "samples of all tenants, a page at a time",
    OVERVIEW_ROUTE: "memory, rates and latencies of all tenants, and the last decisions",
    PAGE_ROUTE: "a page that shows the overview, with a chat for each model",
    OWN_PATH: "this document",
    **{path: one.why for path, one in OTHERS.items() if one.way is RouteWay.OWN},
}
"""Routes for GET, with descriptions of their answers."""
QUERIES = {history.ROUTE: ("since", "limit")}
"""Numbers that a route's query may have."""
ANY_BODY = {
    "type": "object",
    "properties": {"model": {"type": "string"}},
    "required": ["model"],
}
ANSWERS = {"200": {"description": "the answer"}, "default": {"description": "an error"}}


@cache
def openapi_text() -> bytes:
    """The document as JSON."""
    return json.dumps(_document()).encode()


def _document() -> dict[str, Any]:
    asked = json.loads((files("mirage.serve.router") / "request_schemas.json").read_text())
    bodies = {
        **dict.fromkeys(JSON_ROUTES, "application/json"),
        **dict.fromkeys(FORM_ROUTES, "multipart/form-data"),
    }
    posts = {
        path: {"post": _post(path, kind, asked["requests"].get(path, ANY_BODY))}
        for path, kind in bodies.items()
    }
    gets = {path: {"get": _get(path, summary)} for path, summary in READ.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MIRAGE",
            "version": asked["vllm"],
            "description": f"Requests are those of vLLM {asked['vllm']}, which its models read.",
        },
        "paths": gets | posts,
        "components": {
            "schemas": asked["schemas"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _post(path: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": {kind: {"schema": schema}}}
    return {"summary": ROUTES[path].why, "requestBody": body, "responses": ANSWERS}


def _get(path: str, summary: str) -> dict[str, Any]:
    names = [("model", "path", "string")] if "{model}" in path else []
    names += [(name, "query", "number") for name in QUERIES.get(path, ())]
    parameters = [
        {"name": name, "in": where, "required": where == "path", "schema": {"type": kind}}
        for name, where, kind in names
    ]
    return {"summary": summary, "parameters": parameters, "responses": ANSWERS}
