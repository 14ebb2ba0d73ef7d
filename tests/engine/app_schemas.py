"""Makes mirage/serve/router/request_schemas.json, from vLLM's server: python app_schemas.py FILE.

It has the bodies of the routes that are passed on, two objects deep: what lies deeper is vLLM's own
matter, and would be ten times as much.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vllm
from app_routes import TASKS, build_app, everything_on

from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES

DEPTH = 2
TOLD = {"title": str, "discriminator": dict}
"""Keys that are left out, unless they are names of properties (then their values have other types):
titles, and discriminators, which refer to what has been cut off.
"""
BEGIN = "#/components/schemas/"


class Kept:
    """Schemas of vLLM's document that the file keeps, by name."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._all = schemas
        self._depths: dict[str, int] = {}
        self.schemas: dict[str, Any] = {}

    def short(self, schema: Any, depth: int) -> Any:
        """Copy of a schema in which references are followed for `depth` objects only."""
        if isinstance(schema, list):
            return [self.short(each, depth) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if (target := schema.get("$ref")) is not None:
            return self._referred(target.removeprefix(BEGIN), depth)
        return {
            key: self.short(value, depth)
            for key, value in schema.items()
            if key not in TOLD or not isinstance(value, TOLD[key])
        }

    def _referred(self, name: str, depth: int) -> dict[str, Any]:
        if not depth:
            kind = self._all[name].get("type")
            return {"type": kind} if kind else {}
        if self._depths.get(name, 0) < depth:
            self._depths[name] = depth
            self.schemas[name] = self.short(self._all[name], depth - 1)
        return {"$ref": BEGIN + name}


def asked() -> dict[str, Any]:
    """Content of the file. Routes that only pooling models have are left out."""
    app = build_app(everything_on(), TASKS).openapi()
    kept = Kept(app["components"]["schemas"])
    requests = {}
    for path in (*JSON_ROUTES, *FORM_ROUTES):
        if path in app["paths"]:
            (content,) = app["paths"][path]["post"]["requestBody"]["content"].values()
            requests[path] = kept.short(content["schema"], DEPTH)
    schemas = dict(sorted(kept.schemas.items()))
    return {"vllm": vllm.__version__, "requests": requests, "schemas": schemas}


def written(content: Mapping[str, Any]) -> str:
    """Text of the file, with one line for each schema."""

    def lines(of: Mapping[str, Any]) -> str:
        return ",\n".join(f"  {json.dumps(name)}: {json.dumps(of[name])}" for name in of)

    requests, schemas = lines(content["requests"]), lines(content["schemas"])
    version = json.dumps(content["vllm"])
    return (
        f'{{\n "vllm": {version},\n "requests": {{\n{requests}\n }},\n'
        f' "schemas": {{\n{schemas}\n }}\n}}\n'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(written(asked()))
