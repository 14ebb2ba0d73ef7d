"""docs/routes.md, made from the table: ``python -m mirage.serve.routes_page FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

from mirage.serve.routes import ROUTES, RouteWay

HEAD = """# Routes of vLLM's server

Made by `python -m mirage.serve.routes_page docs/routes.md`; a test keeps it equal to what the code
does, and another one asks the installed vLLM for all its routes, those behind flags and variables
too, and is red for one that is not here.

`mirage serve` answers in the place of the engines, whose sockets nobody else can open. Each of
their routes is in one of three lists:

- *passed on*: to the tenant that `model` names, in the JSON object that is the body or in the form.
  A route that a model does not serve gets vLLM's own answer.
- *own*: the router answers, for all tenants. It has more routes of its own: see
  [operating.md](operating.md#endpoints).
- *refused*: 404 with the reason, whatever the method is. It asks for a key like a route that is
  passed on, and counts in `mirage_refused_routes_total{route}`. A path that is in no list is
  refused as well.
"""
TABLE_HEAD = "| Route | | Why |\n|---|---|---|"
ORDER = tuple(RouteWay)


def page() -> str:
    """The whole page."""
    in_order = sorted(ROUTES, key=lambda path: (ORDER.index(ROUTES[path].way), path))
    rows = [f"| `{path}` | {ROUTES[path].way} | {ROUTES[path].why} |" for path in in_order]
    return "\n".join([HEAD, TABLE_HEAD, *rows, ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
