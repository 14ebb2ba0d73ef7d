"""`mirage apply --dry-run` predicts latencies from the requests of the last hour."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from operated import Operated, content, operated, tenant
from short_folders import short_of_module  # noqa: F401

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Operated]:
    told = content("a", "b")
    told["tenants"] = [tenant("a", start="eager"), tenant("b", start="eager")]
    with operated(tmp_path_factory.mktemp("s"), short, told) as running:
        yield running


def written(site: Operated, **keys: Any) -> Path:
    """Write a configuration file in which tenant `a` has other values for `keys`;
    return its path.
    """
    told = content()
    told["tenants"] = [tenant("a", start="eager") | keys, tenant("b", start="eager")]
    (path := site.server.config.parent / "other.yaml").write_text(yaml.safe_dump(told))
    return path


def foretold(site: Operated, path: Path, *words: str) -> str:
    done = site.mirage("apply", "-f", str(path), "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(site: Operated, name: str) -> None:
    body = {"model": name, "prompt": "drip", "max_tokens": 1, "stream": True}
    assert site.server.request("POST", "/v1/completions", body)[0] == 200


def rows(site: Operated, query: str = "") -> dict[str, Any]:
    status, told, _ = site.ask("GET", f"/requests{query}")
    assert status == 200, told
    return told


def test_what_latencies_would_become(site: Operated) -> None:
    path = written(site, share=50)
    few = foretold(site, path)
    assert few.splitlines()[-1] == "fewer than 20 requests in the last hour: no prediction"
    site.complete("a")
    for _ in range(25):
        asked(site, "a")
    site.until(lambda: len(rows(site)["requests"]) == 25)
    told = rows(site)["requests"]
    assert set(told[0]) == {"tenant", "t", "prompt", "output", "first_s", "whole_s", "counted"}
    assert all(row["tenant"] == "a" and row["first_s"] <= row["whole_s"] for row in told)
    page = rows(site, "?limit=20")
    assert len(page["requests"]) == 20
    assert len(rows(site, f"?since={page['next_since']}")["requests"]) == 5
    lines = foretold(site, path).splitlines()
    assert lines[0].startswith("a: would be changed, share with its next engine")
    assert lines[1].startswith("simulated with the 25 requests of the last ")
    table = [line.split() for line in lines[2:]]
    assert [row[:2] for row in table[1:4]] == [["a", "measured"], ["now", "25"], ["after", "25"]]
    assert any(line == "steps: by its engine's own steps" for line in lines)
    found = json.loads(foretold(site, path, "--json"))
    assert found["no_prediction"] is None and "what_if" not in found
    one = found["prediction"]["tenants"]["a"]
    assert one["now"]["requests"] == one["measured"]["requests"] == 25
    assert found["prediction"]["requests"] == 25


def test_nothing_is_predicted_where_nothing_differs(site: Operated) -> None:
    path = written(site)
    assert foretold(site, path) == "nothing differs from what holds\n"
    found = json.loads(foretold(site, path, "--json"))
    assert found["prediction"] is None and found["no_prediction"] is None


def test_json_is_of_a_dry_run(site: Operated) -> None:
    done = site.mirage("apply", "-f", str(written(site)), "--json")
    assert done.returncode == 2 and "--json works only with --dry-run" in done.stderr


def test_a_removed_tenant_s_requests_are_forgotten(site: Operated) -> None:
    asked(site, "b")
    site.until(lambda: any(row["tenant"] == "b" for row in rows(site)["requests"]))
    site.apply(content("a"))
    site.until(lambda: site.names() == ["a"])
    assert all(row["tenant"] == "a" for row in rows(site)["requests"])
