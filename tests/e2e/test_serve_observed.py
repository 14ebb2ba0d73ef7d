"""A server with vLLM's engines after twenty requests, as a real Prometheus sees it.

Prometheus and promtool are Debian's (`apt-get install prometheus`); without them a scrape is read
by prometheus_client's parser alone.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml
from observed import DASHBOARDS, OBSERVE, alarms, names, queries
from prometheus_client.parser import text_string_to_metric_families
from supervised import Served, serving, write_demo
from test_serve_keys import ask, new_key

pytestmark = pytest.mark.e2e

TENANTS = ("llama", "opt")
REQUESTS = 20
WAIT_S = 60
SEVERAL_DEVICES = {"mirage_device_server_ends_total", "mirage_placement_moves_total"}
"""Metrics that only a server of several devices has: test_serve_devices and test_serve_moves check
them.
"""
WITHOUT = "Prometheus is not installed: apt-get install prometheus"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=WITHOUT)
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=WITHOUT)


class Watched:
    """A server with keys and tiers which has answered the twenty requests."""

    def __init__(self, served: Served, client: str, scraper: str) -> None:
        self.served, self.client, self.scraper = served, client, scraper

    def asks(self) -> None:
        """Send twenty requests, one after the other."""
        for number in range(REQUESTS):
            body = {"model": TENANTS[number % 2], "prompt": f"{number} is", "max_tokens": 8}
            status, answer = ask(self.served, "/v1/completions", self.client, body)
            assert status == 200, answer

    def scraped(self) -> str:
        status, text = ask(self.served, "/metrics", self.scraper)
        assert status == 200
        return text


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("observed")
    keys = folder / "keys.yaml"
    client = new_key(folder, "client", "--keys", keys, "--models", ",".join(TENANTS))
    scraper = new_key(folder, "scraper", "--keys", keys, "--metrics")
    disk = {"directory": str(folder / "ssd"), "bytes": "64MiB"}
    tiers = {"host": {"bytes": "32MiB"}, "ssd": disk}
    config = write_demo(folder, TENANTS, "64MiB", tiers=tiers)
    with serving(config, "--keys", str(keys), fake=False, ready_timeout_s=200) as served:
        served.drain()
        yield Watched(served, client, scraper)


@pytest.mark.slow
def test_names_of_dashboards_and_alarms_are_in_a_scrape(watched: Watched) -> None:
    watched.asks()
    time.sleep(1.0)  # answers are fresh for so long
    text = watched.scraped()
    print(f"{len(text)} bytes of {len(TENANTS)} engines")
    families = list(text_string_to_metric_families(text))
    assert len({one.name for one in families}) == len(families)
    samples = [sample for family in families for sample in family.samples]
    found = {sample.name for sample in samples}
    assert set(DASHBOARDS) - found == set()
    lent = {f"{one.name}_total" for one in families if one.name.startswith("mirage_loan_")}
    assert names() - found - lent == SEVERAL_DEVICES, "nothing had to be lent"
    for name in DASHBOARDS:
        models = {one.labels["model_name"] for one in samples if one.name == name}
        assert models == {*TENANTS}, name
    done = [one for one in samples if one.name == "vllm:request_success_total"]
    assert sum(one.value for one in done) >= REQUESTS


# -- Prometheus -----------------------------------------------------------------------------


class Prometheus:
    """A running Prometheus, which scrapes the server every second."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}", timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def series(self, expr: str) -> list[Any]:
        return list(self.get(f"query?query={quote(expr)}")["result"])

    def until(self, what: str, holds: Any) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if holds():
                    return
            except OSError:
                pass  # it does not listen yet
            assert time.monotonic() < deadline, what
            time.sleep(0.5)


@pytest.fixture(scope="module")
def prometheus(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(OBSERVE / "alerts.yml", folder)
    content = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())
    content["global"]["scrape_interval"] = content["global"]["evaluation_interval"] = "1s"
    (job,) = content["scrape_configs"]
    (folder / "token").write_text(watched.scraper)
    job["authorization"] = {"credentials_file": "token"}
    job["static_configs"] = [{"targets": [watched.served.url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(content))
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [f"--web.listen-address={address}", "--config.file=prometheus.yml"]
    process = subprocess.Popen(
        ["prometheus", *words, "--storage.tsdb.path=data"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
    )
    try:
        one = Prometheus(f"http://{address}")
        up = 'up{job="mirage"} == 1'
        one.until("it scrapes", lambda: len(one.series(f"count_over_time(({up})[1m:1s]) > 2")))
        watched.asks()
        done = f"sum(vllm:request_success_total) >= {REQUESTS}"
        one.until("it has seen the requests", lambda: one.series(done))
        yield one
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@needs_prometheus
def test_every_panel_has_a_series_after_twenty_requests(prometheus: Prometheus) -> None:
    empty = []
    for panel, expr in queries():
        query = expr.replace("$__rate_interval", "1m").replace("$tenant", ".*")
        if not prometheus.series(query):
            empty.append((panel, query))
    assert not empty


@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize("tenant", TENANTS)
def test_names_of_vllms_dashboards_answer_for_each_model(
    prometheus: Prometheus, tenant: str
) -> None:
    for name in DASHBOARDS:
        query = f'rate({name}{{model_name="{tenant}"}}[1m])'
        assert prometheus.series(query), query


@pytest.mark.slow
@needs_prometheus
def test_rules_are_read_and_none_fires(prometheus: Prometheus) -> None:
    def rules() -> list[Any]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    prometheus.until("all are evaluated", lambda: {r["health"] for r in rules()} == {"ok"})
    assert [rule["name"] for rule in rules()] == [*alarms()]
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_promtool_is_content(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], cwd=OBSERVE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
