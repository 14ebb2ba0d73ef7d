"""docs/arguments.md, made from the tables: ``python -m mirage.arguments.page FILE``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage.arguments.rules import Rule, Verdict
from mirage.arguments.table import TABLE
from mirage.arguments.variables import ENVIRONMENT

HEAD = """# Arguments of vLLM's server

Made by `python -m mirage.arguments.page docs/arguments.md`; a test keeps it equal to what the
code does, and others that it has exactly the arguments and variables of the installed vLLM.

`engine_args` of a tenant takes vLLM's own arguments, in any of its spellings: `enable_lora`,
`enable-lora`, `no-enable-lora`, `disable-lora`, `tp`, `-O3`, `cc.mode`. Each is in one of three
lists:

- *works*: any value that vLLM takes. Tried with engines whose memory moves, or it touches neither
  memory nor layers.
- *ours*: it follows from MIRAGE's configuration; the key to use instead is named.
- *refused*: `mirage check` says so in one line, before anything starts. Values that are fine,
  mostly what MIRAGE does anyway, are named. What is in no list, such as a new argument of a
  new vLLM, is refused as well.
"""
TABLE_HEAD = "| Argument | | Why, or what instead |\n|---|---|---|"
VARIABLES = """
## Variables

Engines inherit the environment of `mirage`. Each variable that vLLM reads is in one of three lists:

- *set*: MIRAGE sets it, whatever it was.
- *passed*: any value that vLLM takes. It touches neither memory nor layers, nor what requests may
  do.
- *refused*: `mirage check` says so in one line, before anything starts. Values that are fine,
  mostly vLLM's own, are named; an empty value is fine, too. Another name that begins with `VLLM_`
  is refused as well, except those that Kubernetes adds for a service (`VLLM_ROUTER_SERVICE_HOST`).

| Variable | | Why, or what instead |
|---|---|---|"""
AS_VARIABLES = {Verdict.OURS: "set", Verdict.WORKS: "passed", Verdict.REFUSED: "refused"}


def page() -> str:
    """Text of docs/arguments.md."""
    rows = [_row(name, TABLE[name]) for name in sorted(TABLE)]
    variables = [_variable(name, ENVIRONMENT[name]) for name in sorted(ENVIRONMENT)]
    return "\n".join([HEAD, TABLE_HEAD, *rows, VARIABLES, *variables, ""])


def _row(name: str, rule: Rule) -> str:
    if rule.verdict is Verdict.OURS:
        return f"| `{name}` | ours | {rule.words} |"
    inside = [_inside(key, part) for key, part in rule.inside.items()]
    return f"| `{name}` | {rule.verdict}{_only(rule, inside)} | {rule.words} |"


def _variable(name: str, rule: Rule) -> str:
    return f"| `{name}` | {AS_VARIABLES[rule.verdict]}{_only(rule)} | {rule.words} |"


def _only(rule: Rule, inside: Sequence[str] = ()) -> str:
    fine = [*map(_value, rule.but), *inside]
    return f", except {', '.join(fine)}" if fine else ""


def _inside(key: str, rule: Rule) -> str:
    values = " or ".join(map(_value, rule.but))
    return f"its key `{key}`" + (f" with {values}" if values else "")


def _value(value: Any) -> str:
    if value == "":
        return "nothing"
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
