"""docs/arguments.md, made from the table: ``python -m mirage.arguments.page FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mirage.arguments.rules import Rule, Verdict
from mirage.arguments.table import ENVIRONMENT, TABLE

HEAD = """# Arguments of vLLM's server

Made by `python -m mirage.arguments.page docs/arguments.md`; a test keeps it equal to what the
code does, and another that it has exactly the arguments of the vLLM that is installed.

`engine_args` of a tenant takes vLLM's own arguments, in any of its spellings: `enable_lora`,
`enable-lora`, `no-enable-lora`, `tp`, `-O3`, `cc.mode`. Each is in one of three lists:

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

Engines inherit the environment. These variables of vLLM's are refused, but for the values named.

| Variable | | Why |
|---|---|---|"""


def page() -> str:
    """The whole page."""
    rows = [_row(name, TABLE[name]) for name in sorted(TABLE)]
    variables = [_row(name, ENVIRONMENT[name]) for name in sorted(ENVIRONMENT)]
    return "\n".join([HEAD, TABLE_HEAD, *rows, VARIABLES, *variables, ""])


def _row(name: str, rule: Rule) -> str:
    if rule.verdict is Verdict.OURS:
        return f"| `{name}` | ours | {rule.words} |"
    fine = [*map(_value, rule.but), *(_inside(key, part) for key, part in rule.inside.items())]
    only = f", but for {', '.join(fine)}" if fine else ""
    return f"| `{name}` | {rule.verdict}{only} | {rule.words} |"


def _inside(key: str, rule: Rule) -> str:
    values = " or ".join(map(_value, rule.but))
    return f"its key `{key}`" + (f" with {values}" if values else "")


def _value(value: Any) -> str:
    if value == "":
        return "nothing"
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
