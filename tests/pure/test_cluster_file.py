"""The file of a cluster, and the options beside it: orders for device servers, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from mirage import cli
from mirage.machines.agent import AgentOrder
from mirage.machines.seam import MachineThere
from mirage.serve.apply.source import ConfigSource
from mirage.serve.commands.check_cluster import THERE
from mirage.serve.commands.upgrade import upgraded_text
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.cluster import ENGINES_S, ClusterOptions, ServedCluster, served_cluster
from mirage.serve.machine.declared import tenants_in
from mirage.serve.machine.machine_router import RouterOrder, declared
from mirage.serve.machine.tethered import TetheredOrder

pytestmark = pytest.mark.pure

OPTIONS = ClusterOptions((), "", 8000, LogFormat.TEXT, 3600.0, ("server",))


def content(**keys: Any) -> dict[str, Any]:
    """Keys of a file with a device and a model on each of two machines."""
    tenant = {"model": "/elsewhere/model", "share": 40}
    return {
        "devices": [
            {"name": "left", "machine": "m1", "memory": "1GiB"},
            {"name": "right", "machine": "m2", "memory": "1GiB"},
        ],
        "tenants": [
            {"name": "a", "device": "left", **tenant},
            {"name": "b", "device": "right", **tenant},
        ],
    } | keys


def written_to(folder: Path, **keys: Any) -> Path:
    """A file with these keys in `folder`."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content(**keys)))
    return path


def plan_of(path: Path, options: ClusterOptions = OPTIONS, **of_source: Any) -> ServedCluster:
    source = ConfigSource(path, **of_source)
    return served_cluster(source, source.written(), options)


def ordered(plan: ServedCluster) -> TetheredOrder:
    """Order for the server of the device `left`."""
    agent = msgspec.json.decode(
        plan.order("left", "10.0.0.1", plan.written("left", ["a"])), type=AgentOrder
    )
    return msgspec.json.decode(agent.order, type=TetheredOrder)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Line with which a command refuses its words."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    told = capsys.readouterr()
    assert ended.value.code == 2 and not told.out and told.err.count("\n") == 1, told
    return told.err


def test_engines_go_on_as_long_as_the_file_says(tmp_path: Path) -> None:
    assert ordered(plan_of(written_to(tmp_path))).lease_s == ENGINES_S
    for lease_s in (0, 45.0):
        order = ordered(plan_of(written_to(tmp_path, lease_s=lease_s)))
        assert order.lease_s is None, "it would override the file"
        assert order.config.raw["lease_s"] == lease_s


def test_options_that_machines_understand_are_in_their_orders(tmp_path: Path) -> None:
    assert ordered(plan_of(written_to(tmp_path))).startup_timeout_s is None
    path = written_to(tmp_path, http={"tls": {"certificate": "c.pem", "key": "k.pem"}})
    plan = plan_of(path, OPTIONS._replace(startup_timeout_s=77.0), tls=False)
    assert ordered(plan).startup_timeout_s == 77
    machine = MachineThere("m1", "10.0.0.1", "life")
    order = msgspec.json.decode(plan.router_order("router@m1", machine, {}), type=RouterOrder)
    assert plan.common.http.tls is None and declared(order).http.tls is None
    assert plan_of(path).common.http.tls is not None


@pytest.mark.parametrize(
    "words",
    [
        ("--host", "127.0.0.1"),
        ("--no-keys",),
        ("--memory", "1GiB"),
        ("--ready-file", "ready"),
        ("--log-dir", "logs"),
        ("--access-log", "log"),
        ("--all-or-nothing",),
        ("--write-config", "new.yaml"),
        ("--trust-remote-code", "a/b@1"),
    ],
    ids=lambda words: words[0],
)
def test_an_option_that_machines_would_not_get_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "serve", "mine.yaml", "--cluster", *words)
    assert line.startswith(f"mirage: error: {words[0]} cannot be used with --cluster: "), line


def test_a_cluster_is_served_by_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "serve", "mine.yaml", "other.yaml", "--cluster")
    assert line == (
        "mirage: error: --cluster takes one configuration file, not mine.yaml other.yaml\n"
    )


def test_check_reads_the_keys_and_not_the_models_of_other_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written_to(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(path)])
    assert not ended.value.code
    assert capsys.readouterr().out.splitlines() == ["left on m1: a", "right on m2: b", THERE]
    tenants = content()["tenants"]
    for keys, problem in (
        ({"tenants": [tenants[0] | {"device": "middle"}]}, "tenant 'a': no device 'middle'"),
        ({"lease_s": -1}, "lease_s: found -1"),
        ({"placement": {"decide_s": 0}}, "placement.decide_s: found 0"),
        ({"devices": [content()["devices"][0], {"name": "x"}]}, "devices.1.machine: name the"),
        ({"tenants": [tenants[0] | {"shares": 4}]}, "unknown key 'tenants.0.shares'"),
    ):
        assert problem in refused(capsys, "check", str(written_to(tmp_path, **keys)))
    written_to(tmp_path)
    assert "write memory in each of devices" in refused(
        capsys, "check", str(path), "--memory", "1GiB"
    )
    assert "--json cannot be used" in refused(capsys, "check", str(path), "--json")


def test_one_machine_does_not_serve_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written_to(tmp_path)
    assert refused(capsys, "serve", str(path)) == (
        f"mirage: error: {path}: devices have a machine: mirage serve --cluster serves this file, "
        "or leave machine out\n"
    )


def test_models_of_the_file_are_fetched_and_its_keys_upgraded(tmp_path: Path) -> None:
    path = written_to(tmp_path)
    assert [one.name for one in tenants_in(content(), path)] == ["a", "b"]
    assert "machine: m1" in upgraded_text([str(path)])


def test_vllm_is_not_asked_about_a_folder_that_this_machine_lacks(tmp_path: Path) -> None:
    plan, nobody = plan_of(written_to(tmp_path)), ("-c", "raise SystemExit(1)")
    known = plan.known(nobody)
    assert [model.name for model in known.facts.models] == ["a", "b"]
    for name in ("a", "b"):
        assert known.models[name].why.startswith("no model folder at /elsewhere/model: ")
    assert plan.known(nobody, known.models).models == known.models
    assert plan.unfit("left", ["a"], known.models).keys() == {"a"}, "an apply is refused"
