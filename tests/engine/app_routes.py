"""Prints the routes of vLLM's server with all options that add routes, as JSON:
path and methods.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from importlib.util import find_spec
from types import ModuleType
from typing import Any, get_args

# vLLM 0.33 needs it to answer, not to have routes; the packages are those of the installed one.
if find_spec("orjson") is None:
    sys.modules["orjson"] = ModuleType("orjson")

from vllm.config import ProfilerConfig
from vllm.entrypoints.launchers.app import build_app
from vllm.tasks import SupportedTask

from mirage.engine.arguments import server_parser

SWITCHES = (
    "enable_scale_out",
    "enable_tokenizer_info_endpoint",
    "enable_fault_tolerance",
    "tokens_only",
)
"""Arguments that add routes; `enable_offline_docs` has others in the place of some."""
TASKS: Any = get_args(SupportedTask)


def everything_on(**others: Any) -> Namespace:
    """Arguments of vLLM's server with every option that adds routes switched on."""
    args = server_parser().parse_args([])
    profiler = ProfilerConfig(profiler="cuda")
    changes = {**dict.fromkeys(SWITCHES, True), "profiler_config": profiler, **others}
    for name, value in changes.items():
        setattr(args, name, value)
    return args


def main() -> None:
    found: dict[str, set[str]] = {}
    for offline in (False, True):
        app = build_app(everything_on(enable_offline_docs=offline), TASKS)
        for route in app.routes:
            path = getattr(route, "path", "")
            found.setdefault(path, set()).update(getattr(route, "methods", None) or ())
    print(json.dumps({path: sorted(methods) for path, methods in found.items()}))


if __name__ == "__main__":
    main()
