"""docs/routes.md, made from the table: ``python -m mirage.serve.routes_page FILE``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from mirage.serve.routes import OTHERS, ROUTES, RouteDecision, RouteWay

HEAD = """# Routes of vLLM's server

Made by `python -m mirage.serve.routes_page docs/routes.md`; a test keeps it equal to what the code
does, and another one asks the installed vLLM for all its routes, those behind flags and variables
too, and is red for one that is not here.

`mirage serve` answers in the place of the engines, whose sockets nobody else can open. Each of
their routes is in one of three lists:

- *passed on*: to the tenant that `model` names, in the JSON object that is the body or in the form.
  A route that a model does not serve gets vLLM's own answer.
- *own*: the router answers, for all tenants. It has more routes of its own: see
  [clients.md](clients.md#endpoints).
- *refused*: 404 with the reason, whatever the method is. It asks for a key like a route that is
  passed on, and counts in `mirage_refused_routes_total{route}`. A path that is in no list is
  refused as well.
"""
TABLE_HEAD = "| Route | | Why |\n|---|---|---|"
ORDER = tuple(RouteWay)


OTHERS_HEAD = """
## Routes of Ollama and llama-swap

Clients of Ollama use its routes under `/v1`. `keep_alive` in a body changes nothing, since the
configuration says when a tenant [sleeps](roster.md#keys): `keep_alive` and `stop_after` there are
what `keep_alive` is in Ollama and `ttl` in llama-swap.

Tools that list models by these show what is served and what is loaded. They change nothing. A key
sees its tenants alone, and each answer is at most a second old. Fields have their names:

- `/api/ps`: `size_vram` is device memory that a tenant holds, `size` counts layers that are away
  besides. `expires_at` is when its own times put it to sleep, the year 9999 if they do not. Tenants
  that sleep are not listed.
- `/api/tags`: `size` is the bytes of parameters, 0 before a tenant's first engine. `modified_at` is
  the start of the server.
- `digest` is the SHA-256 of the name, since no other is known. `details` tell the format and, of
  aliases and adapters, the tenant.
- `/running`: `ttl` is the seconds until `expires_at`, 0 if there is none. `cmd` and `proxy` are
  empty.
"""


def page() -> str:
    """Text of docs/routes.md."""
    return "\n".join([HEAD, *_table(ROUTES), OTHERS_HEAD, *_table(OTHERS), ""])


def _table(routes: Mapping[str, RouteDecision]) -> list[str]:
    in_order = sorted(routes, key=lambda path: (ORDER.index(routes[path].way), path))
    return [
        TABLE_HEAD,
        *(f"| `{path}` | {routes[path].way} | {routes[path].why} |" for path in in_order),
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
