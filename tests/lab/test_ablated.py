"""Ablations, rules without a setting: replaced in a process, in its servers, or in a simulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import ablated as launcher
from benchmarks.ablations import ablated, parsed, setup, with_rules
from mirage.config import Config, DeviceSection, Remap, TenantSection
from mirage.control.rules import Rules

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
CONFIG = Config(
    device=DeviceSection(memory=1 << 30),
    tenants=[TenantSection(name="a", model=Path("a"), share=50)],
    remap=Remap(rest_s=3),
)
WORLD = {
    "title": "one",
    "tenants": [{"name": "a", "model": "opt-13b", "share": 45, "rate": 1}],
    "workload": {"requests": 10},
}


def test_rules_are_changed_in_the_context_alone() -> None:
    with ablated(stream_slots=1, decode_cap=False):
        rules = Rules.served(CONFIG)
        assert (rules.stream_slots, rules.decode_cap, rules.rest_s) == (1, False, 3)
    assert Rules.served(CONFIG) == Rules(rest_s=3)


def test_words_are_values_of_yaml() -> None:
    words = ["decode_cap=false", "stream_slots=1", "victims=lru", "lend_kv=0.5"]
    assert parsed(words) == {
        "decode_cap": False,
        "stream_slots": 1,
        "victims": "lru",
        "lend_kv": 0.5,
    }


def test_servers_of_a_replay_decide_by_the_same_rules() -> None:
    def plain(config: Path) -> list[str]:
        return ["python", "-m", "mirage", "serve", str(config)]

    command = launcher.servers(plain, ["ablated.py", "stream_slots=1", "--"])
    assert command(Path("c.yaml")) == [
        "python",
        "ablated.py",
        "stream_slots=1",
        "--",
        "serve",
        "c.yaml",
    ]
    assert launcher.split(["stream_slots=1", "--", "serve", "c.yaml"]) == (
        ["stream_slots=1"],
        ["serve", "c.yaml"],
    )


def test_an_experiments_ablations_are_all_policies_but_for_what_they_change() -> None:
    made = setup(WORLD | {"ablations": {"keep_free": False, "stream_slots": 2}})
    rules = {name: made.rules(made.variant(name)) for name in ("static", "mirage", "lru")}
    assert all(not each.keep_free and each.stream_slots == 2 for each in rules.values())
    assert [each.victims for each in rules.values()] == ["mru", "mru", "lru"]
    assert with_rules({"stream_slots": 2})["one-slot"].changes["stream_slots"] == 1
    assert setup(WORLD).rules(SimpleNamespace(rules=Rules.of)) == Rules()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stream_slots=1", "serve", "c.yaml"], "found no --"),
        (
            ["stream_slots=1", "--", "simulate", "c.yaml"],
            "'simulate': choose from serve, check, replay",
        ),
        (["stream_slots=1", "--"], "choose from serve"),
        (["stream_slots=7", "--", "serve", "c.yaml"], "ablations: stream_slots"),
        (["rest_s=1", "--", "serve", "c.yaml"], "ablation 'rest_s': choose from decode_cap, "),
        (["stream_slots", "--", "serve", "c.yaml"], "'stream_slots': write NAME=VALUE"),
        (["stream_slots=1", "--", "serve", "none.yaml"], "none.yaml: cannot be read"),
    ],
)
def test_a_wrong_command_line_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "ablated.py"), *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("mirage: error: ") and message in line
