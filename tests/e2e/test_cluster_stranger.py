"""Two machines that share no file: the lines of docs/machines.md in a shell, with models on one of
them only.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from textwrap import dedent
from typing import Any

import pytest
import yaml
from model_folder import make_folder
from net_house import NetHouse, RunningThere, net_house
from operated import ROSTER
from supervised import HERE, WITH_FAKES
from tethered import until
from weight_machines import same

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.one_of("clusters"),
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

PAGE = (HERE.parents[1] / "docs" / "machines.md").read_text()
HOSTS = {"m1": "10.0.0.1", "m2": "10.0.0.2"}
MODELS = "chat", "code"
LONG_S = 240.0


def line(begin: str, title: str = "From nothing to two machines", **replaced: str) -> str:
    """The only line of code in a section of the page that begins with the given words, with words
    replaced. If the page prints a prompt, which names the machine, `begin` has it and the result
    has not.
    """
    section = re.split(r"\n##+ ", PAGE.partition(f"# {title}\n")[2])[0]
    (found,) = re.findall(rf"^    ({re.escape(begin)}.*)$", section, re.MULTILINE)
    found = re.sub(r"^m\d\$ ", "", found)
    for old, new in replaced.items():
        assert old in found, (old, found)
        found = found.replace(old, new)
    return str(found)


def blocks(title: str) -> dict[str, Any]:
    """Keys of the configuration that a section prints."""
    section = re.split(r"\n##+ ", PAGE.partition(f"## {title}\n")[2])[0]
    told: dict[str, Any] = {}
    for block in re.findall(r"^    (?:devices|tenants|weights):\n(?:    .*\n)+", section, re.M):
        told |= yaml.safe_load(dedent(block))
    return told


class Stranger:
    """Person at a shell of one machine, in the home folder, who sees no file of the other one."""

    def __init__(self, house: NetHouse, over: ExitStack, name: str) -> None:
        self._house, self._over, self.name = house, over, name
        self.home = house.folder / name / "home"
        self.node = self.home / ".local" / "state" / "mirage" / "node"
        self.variables = ""

    def boots(self) -> None:
        """Start the machine, and hide the files of the others from it."""
        machine = self._house.machine(self.name)
        for other in HOSTS.keys() - {self.name}:
            there = self._house.folder / other
            over_ssh = machine.folder / "ssh" / HOSTS[other]
            for folder in (over_ssh, there / "home"):
                folder.mkdir(parents=True, exist_ok=True)
            machine.spaces.root("mount", "--bind", str(there / "home"), str(over_ssh))
            machine.spaces.root("mount", "-t", "tmpfs", "tmpfs", str(there))
        programs = {
            "mirage": f'exec {sys.executable} {WITH_FAKES} "$@"',
            "ssh": f'cd {machine.folder}/ssh/"$1" && shift && exec "$@"',
            "scp": f'cp -p "$2" "$3" {machine.folder}/ssh/"${{4%:}}"',
        }
        (machine.folder / "bin").mkdir(exist_ok=True)
        for program, text in programs.items():
            path = machine.folder / "bin" / program
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

    def _words(self, typed: str) -> tuple[str, ...]:
        folder = self._house.machines[self.name].folder
        return "sh", "-c", f"cd; PATH={folder}/bin:$PATH; {self.variables}\n{typed}"

    def types(self, typed: str, timeout_s: float = LONG_S) -> tuple[int, str]:
        """Type a line, and wait for its end. Returns the exit code and all output."""
        with self._house.machines[self.name].runs_program(*self._words(typed)) as running:
            return running.ended(timeout_s), running.text

    def starts(self, typed: str, says: str) -> RunningThere:
        """Type a line that goes on, and wait until it prints `says`."""
        words = self._words(f"exec {typed}")
        running = self._over.enter_context(self._house.machines[self.name].runs_program(*words))
        if says:
            running.says(says, LONG_S)
        return running

    def loses_all(self) -> None:
        """Kill all processes of the machine at once."""
        self._house.lose(self.name)


class Strangers:
    """Both machines of docs/machines.md, with a node on each, and the models in m1's store."""

    def __init__(self, house: NetHouse, over: ExitStack) -> None:
        self.m1, self.m2 = (Stranger(house, over, name) for name in HOSTS)
        self.m2.variables = f"export MIRAGE_NODE_FOLDER={house.folder}/m2/node"
        for one in (self.m1, self.m2):
            one.boots()
        self.models = house.folder / "m1" / "models"
        self.models.mkdir()
        for name in MODELS:
            make_folder(self.models / name)
            (self.models / name / "README.md").write_text(f"This is {name}.")
        self.config = blocks("From nothing to two machines")
        self.config |= {"dtype": "float32", "roster": ROSTER, "hang_s": 5}
        for device in self.config["devices"]:
            device |= {"kind": "host", "memory": "4MiB"}
        self.token = ""
        self.answers = list[tuple[str, str, str, str]]()

    def weights(self) -> None:
        """Name the models as the section about weights does."""
        told = blocks("Weights")
        self.config |= told
        assert [one["model"] for one in told["tenants"]] == ["weights:chat", "weights:code"]

    def writes(self, where: Stranger) -> None:
        """Write mine.yaml on a machine."""
        for tenant in self.config["tenants"]:
            tenant["max_model_len"] = 128
            tenant["model"] = tenant["model"].replace("/models", str(self.models))
        (where.home / "mine.yaml").write_text(yaml.safe_dump(self.config))

    def joins(self) -> None:
        """Start both nodes."""
        self.m1.starts(line("mirage node start"), "m1: runs")
        assert self.m2.types(line("(umask 077"))[0] == 0
        self.m2.starts(line("mirage node join"), "m2: runs")

    def keys(self, where: Stranger) -> None:
        """Make a key on a machine by the command of the page."""
        code, text = where.types(line("mirage keys new"))
        assert code == 0, text
        (self.token,) = (one for one in text.splitlines() if one.startswith("mirage-"))

    def answer(self, asker: Stranger, machine: str, model: str) -> str:
        """Answer of a machine's address to the page's request; empty if there is none."""
        asks = line("curl", TOKEN=self.token, chat=model, **{HOSTS["m1"]: HOSTS[machine]})
        told = asker.types(f"{asks} -sS --max-time 5 -w ' %{{http_code}}'")[1]
        self.answers.append((asker.name, machine, model, told))
        return told

    def serves(self, asker: Stranger, machine: str, *models: str) -> bool:
        """True if a machine's address answers requests for all these models."""
        return all(self.answer(asker, machine, model).endswith(" 200") for model in models)


@contextmanager
def strangers() -> Iterator[Strangers]:
    with net_house() as house, ExitStack() as over:
        two = Strangers(house, over)
        try:
            yield two
        except BaseException:
            print(two.answers[-6:])
            raise


def test_models_of_one_machine_come_to_the_other_and_either_is_lost() -> None:
    with strangers() as two:
        m1, m2 = two.m1, two.m2
        two.joins()
        assert not two.models.parent.samefile(m2.home.parent)
        assert m2.types(f"ls {two.models}")[0] != 0, "the models are on one machine"
        for name in MODELS:
            adds = line(f"m1$ mirage weights add /models/{name}", "Weights")
            code, text = m1.types(adds.replace("/models", str(two.models)))
            assert code == 0, text
        for one in (m1, m2):
            one.starts(line(f"{one.name}$ mirage weights serve", "Weights"), "http://")
        two.weights()
        two.writes(m1)
        code, text = m1.types("mirage check mine.yaml")
        assert code == 0, text
        two.keys(m1)
        controller = m1.starts(line("mirage serve"), "serves all models")
        for name in ("m1", "m2"):
            until(lambda n=name: two.serves(m2, n, *MODELS), f"{name} serves both", LONG_S)
        stores = [one.home / ".cache" / "mirage" / "weights" / "models" for one in (m1, m2)]
        until(lambda: len([*stores[1].iterdir()]) == 2, "both are in m2's store", LONG_S)
        assert same(*stores), "what came is what was added"

        m2.loses_all()
        lost = time.monotonic()
        until(lambda: two.serves(m1, "m1", *MODELS), "m1 serves both", LONG_S)
        print(f"m2 is lost: m1 serves both after {time.monotonic() - lost:.1f} s")
        m2.boots()
        node = m2.starts(line("mirage node join"), "m2: runs")
        m2.starts(line("m2$ mirage weights serve", "Weights"), "http://")
        for name in HOSTS:
            until(lambda n=name: two.serves(m2, n, *MODELS), f"{name} serves both", LONG_S)

        controller.says("code: right serves code again")
        said = m1.types(line("scp"))
        assert said == (0, ""), said
        m1.loses_all()
        away = lambda: "device_away" in two.answer(m2, "m2", "chat")  # noqa: E731
        lost = time.monotonic()
        until(away, "m2 knows that m1 is lost", LONG_S)
        print(f"m1 is lost: m2 says so after {time.monotonic() - lost:.1f} s")
        assert two.serves(m2, "m2", "code"), "it goes on"
        node.stop()
        assert two.serves(m2, "m2", "code"), "it goes on without a node"
        again, begun = "What fails, and what happens", time.monotonic()
        m2.starts(line("m2$ mirage node start", again), "m2: runs")
        controller = m2.starts(line("m2$ mirage serve", again), "controller of epoch")
        until(lambda: two.serves(m2, "m2", *MODELS), "m2 serves both", LONG_S)
        print(f"another head: m2 serves both after {time.monotonic() - begun:.1f} s")
        m1.boots()
        joins = line("m3$ mirage node join", again, m3="m1", **{"10.0.0.3": HOSTS["m1"]})
        m1.starts(joins, "m1: runs")
        for name in HOSTS:
            until(lambda n=name: two.serves(m1, n, *MODELS), f"{name} serves both", LONG_S)
        assert controller.stop() == 130, controller.text
        for one in (m1, m2):
            code, text = one.types("mirage node leave")
            assert code == 0 and "drains and ends" in text, text


def test_steps_beside_the_page_are_answered_by_a_line() -> None:
    with strangers() as two:
        m1, m2 = two.m1, two.m2
        m1.starts(line("mirage node start"), "m1: runs")
        for secret, says in (
            ("", "wrong: no secret, which has 16 characters or more: copy it again"),
            ("another secret", "the head has another secret: copy its secret again, and join"),
        ):
            m2.types(f"(umask 077; echo {secret} {secret} > wrong)")
            code, text = m2.types(line("mirage node join", **{"copied-secret": "wrong"}))
            assert code != 0 and says in text, text
        assert m2.types(line("(umask 077"))[0] == 0
        m2.starts(line("mirage node join"), "m2: runs")

        two.writes(m1)
        two.keys(m1)
        away = (
            f"device 'right' on m2 does not start: tenant 'code': no model folder at {two.models}"
        )
        controller = m1.starts(line("mirage serve"), away)
        until(lambda: two.serves(m1, "m1", "chat"), "chat is served", LONG_S)
        assert controller.stop() == 130
        two.models.rename(two.models.with_name("gone"))
        again = m1.starts(line("mirage serve"), away)
        again.says("controller of epoch 2")
        for name in MODELS:
            again.says(f"mirage: {name}: no model folder at {two.models / name}: ")
        assert two.serves(m2, "m1", "chat"), "what is served goes on"
        for one in (controller, again):
            assert one.text.count(away) == 1, "it is printed once"
