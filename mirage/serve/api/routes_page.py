"""docs/routes.md, made from the table: ``python -m mirage.serve.api.routes_page FILE``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from mirage.serve.api.routes import OTHERS, ROUTES, RouteDecision, RouteWay

HEAD = """# Routes of vLLM's server

This page is made by `python -m mirage.serve.api.routes_page docs/routes.md`. One test compares it
with the code. Another test asks the installed vLLM for all its routes, including those behind flags
and variables, and fails for a route that is missing here.

Clients reach the engines only through `mirage serve`. Each route of vLLM's server is in one of
three lists:

- *passed on*: to the tenant that `model` names, in the JSON object that is the body or in the form.
  A route that a model does not serve gets vLLM's own answer.
- *own*: the router answers, for all tenants. It has more routes of its own: see
  [clients.md](clients.md#endpoints).
- *refused*: 404 with the reason, for every method. It asks for a key like a route that is
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

Tools that list models by these routes show the served and the loaded ones. The routes change
nothing. A key sees only its tenants, and each answer is at most a second old. The names of fields
are those of Ollama and llama-swap:

- `/api/ps`: `size_vram` is the device memory that a tenant holds, `size` includes layers that are
  away. `expires_at` is the time at which `keep_alive` puts the tenant to sleep, or the year 9999
  without one. Sleeping tenants are not listed.
- `/api/tags`: `size` is the bytes of parameters, 0 before a tenant's first engine. `modified_at` is
  the start of the server.
- `digest` is the SHA-256 of the name, because the digest of the files is unknown. `details` has the
  format and, for aliases and adapters, the tenant.
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
