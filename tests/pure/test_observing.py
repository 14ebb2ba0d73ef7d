"""Alarms and panels of `configs/observe`: their metrics exist, and each alarm has a paragraph in
the documents and a case in which it fires.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from observed import DASHBOARDS, alarms, names, panels, queries, read
from test_arbiter import alone
from test_tier_metrics import DISK, PAGE

from mirage.config import Policy
from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.serve.clients.body_budget import BodyBudget
from mirage.serve.clients.client_metrics import ClientMetrics
from mirage.serve.clients.crowd import Crowd
from mirage.serve.metrics.registry import rendered
from mirage.serve.registry.registry import DeviceSources, Registry
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.messages import RouterWelcome
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.engine_metrics import EngineMetrics
from mirage.serve.router.inner import InnerClient
from mirage.serve.router.key_metrics import KeyMetrics
from mirage.serve.router.link import SupervisorLink
from mirage.serve.router.metrics import RouterMetrics
from mirage.serve.router.peer_silence import PeerSilence
from mirage.serve.router.scrape import MetricsScrape
from mirage.tiers.core import Core

pytestmark = pytest.mark.pure

DOCS = Path(__file__).parents[2] / "docs"
FAMILY = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
PARTS = {"histogram": ("_bucket", "_sum", "_count")}
ALARM = re.compile(r"^## (Mirage\w+)$", re.MULTILINE)


class Weights:
    """Stand-in for a keeper of weights without any masters."""

    def kept(self, tenant: str) -> bool:
        return False

    def state(self) -> dict[str, int]:
        return dict.fromkeys(("masters", "used_bytes", "idle_bytes", "idle_most_bytes"), 0)


@pytest.fixture(scope="module")
def scraped() -> set[str]:
    """Names of all samples that `/metrics` of our server may have, without those of
    vLLM's engines.
    """
    attendance = Attendance(Roster(1, RosterRules()), None)  # type: ignore[arg-type]
    sources = DeviceSources(
        pool=Core(PAGE).state,
        disk=lambda: DISK,
        weights=Weights(),
        decided=alone("spatial"),
        attended=lambda: attendance,
    )
    link = SupervisorLink(Path("none"))
    link.welcome = RouterWelcome({}, "", 0, 1.0, "", {})
    tenants = RoutedDevices(link, PeerSilence(3))
    router = RouterMetrics(tenants)
    router.add(ClientMetrics(Crowd(1, 1), BodyBudget(1)))
    router.add(KeyMetrics(list))
    MetricsScrape(router, EngineMetrics(tenants, None), {"": InnerClient(link)})  # type: ignore[arg-type]
    text = rendered(Registry(Policy.MIRAGE, 1, {}, sources), {}) + router.render()
    families = FAMILY.findall(text.decode())
    return {name + part for name, kind in families for part in PARTS.get(kind, ("",))}


def test_alarms_and_panels_ask_for_metrics_that_there_are(scraped: set[str]) -> None:
    assert names() - scraped - set(DASHBOARDS) == set()
    assert {name for name in names() if name.startswith("vllm:")} <= set(DASHBOARDS)


def test_each_alarm_has_a_paragraph_and_no_other_has() -> None:
    told = ALARM.findall((DOCS / "alarms.md").read_text())
    assert told == [*alarms()]
    for rule in alarms().values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]


def test_each_alarm_is_tried_and_fires() -> None:
    """Each alarm has a case in alerts_test.yml in which it fires. This test reads files only;
    `promtool test rules` evaluates the cases in `test_serve_observed.py`.
    """
    tried = [one for test in read("alerts_test.yml")["tests"] for one in test["alert_rule_test"]]
    assert {one["alertname"] for one in tried if one.get("exp_alerts")} == {*alarms()}


def test_the_example_of_a_configuration_reads_the_rules() -> None:
    example = read("prometheus.yml")
    assert example["rule_files"] == ["alerts.yml"]
    (job,) = example["scrape_configs"]
    assert job["job_name"] == "mirage"


def place(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    across, down = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
    return {(x, y) for x in across for y in down}


@pytest.mark.parametrize(
    "of", [lambda one: one["id"], lambda one: one["title"]], ids=["number", "title"]
)
def test_panels_are_told_apart(of: Callable[[dict[str, Any]], Any]) -> None:
    found = [of(one) for one in read("dashboard.json")["panels"]]
    assert len(set(found)) == len(found)


def test_panels_say_what_they_show_and_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read("dashboard.json")["panels"]:
        assert not taken & place(panel) and max(x for x, _ in place(panel)) < 24
        taken |= place(panel)
    assert all(one["description"] and one["targets"] for one in panels())
    known = {"$tenant", "$__rate_interval"}
    for panel, expr in queries():
        assert set(re.findall(r"\$\w+", expr)) <= known, panel
