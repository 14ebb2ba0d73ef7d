"""Paths as a shell would read them, and users without a name or a home."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from mirage import cli, profiles
from mirage.config import Config, ConfigError, load
from mirage.errors import InputRefused
from mirage.paths import cache_folder, expanded, somebody, word
from mirage.processes.exits import exits
from mirage.serve.adapting import adapters
from mirage.serve.launch.launcher import environment
from mirage.workload import public
from mirage.workload.chosen import chosen, located, of_config

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("MODELS", "/m")
    monkeypatch.delenv("NOWHERE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment of a user without HOME, whom the system's user database does not know."""

    def unknown(*_: object) -> Any:
        raise KeyError("getpwuid(): uid not found: 12345")

    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("~/models/llama", "/home/me/models/llama"),
        ("~", "/home/me"),
        ("$MODELS/llama", "/m/llama"),
        ("${MODELS}/llama", "/m/llama"),
        ("$HOME/$MODELS", "/home/me//m"),
        ("../llama", "../llama"),
        ("a~b/c~", "a~b/c~"),
        ("5$/$5", "5$/$5"),
        (Path("~/x"), Path("/home/me/x")),
        (5, 5),
        (None, None),
    ],
)
def test_a_path_means_what_it_does_in_a_shell(written: Any, meant: Any) -> None:
    assert expanded(written) == meant


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("$NOWHERE/llama", r"^path '\$NOWHERE/llama': \$NOWHERE is not set"),
        ("${NOWHERE}", r"\$NOWHERE is not set"),
        ("~nobody-has-this-name/x", "no such home is known"),
    ],
)
def test_a_path_that_means_nothing_is_refused(written: str, why: str) -> None:
    with pytest.raises(InputRefused, match=why):
        expanded(written)


def content(**changes: Any) -> dict[str, Any]:
    tenant = {"name": "a", "model": "~/a", "share": 50}
    return {"device": {"memory": "1GiB"}, "tenants": [tenant]} | changes


PLACES: dict[str, tuple[dict[str, Any], Callable[[Config], Any]]] = {
    "model": (content(), lambda c: c.tenants[0].model),
    "ssd": (
        content(tiers={"host": {"bytes": "1MiB"}, "ssd": {"directory": "~/a", "bytes": "1GiB"}}),
        lambda c: c.tiers.ssd and c.tiers.ssd.directory,
    ),
    "profile": (
        content(device={"memory": "1GiB", "profile": "~/a.yaml"}),
        lambda c: Path(str(c.device.profile)).with_suffix(""),
    ),
    "trace": (
        content(replay={"trace": "~/a"}),
        lambda c: of_config(c.replay.trace, Path("/c")).shared,
    ),
    "traces": (
        content(replay={"trace": {"a": "~/a"}}),
        lambda c: of_config(c.replay.trace, Path("/c")).own["a"],
    ),
    "adapter": (
        content(
            tenants=[
                {"name": "a", "model": "/m", "share": 50, "engine_args": {"lora_modules": "x=~/a"}}
            ]
        ),
        lambda c: Path(
            adapters.adapters_of(adapters.beside(c, Path("/c")).tenants[0].engine_args)["x"]
        ),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_path_of_a_configuration_is_read_so(place: str, tmp_path: Path) -> None:
    raw, found = PLACES[place]
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(raw))
    assert found(load(file)) == Path("/home/me/a")
    file.write_text(yaml.safe_dump(raw).replace("~/a", "$NOWHERE/a"))
    with pytest.raises(InputRefused, match=r"\$NOWHERE is not set"):
        found(load(file))


def test_every_path_of_a_command_line_is_read_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert chosen("a=~/t.csv", ["a"]).own == {"a": Path("/home/me/t.csv")}
    assert located("$MODELS/t.csv") == Path("/m/t.csv")
    assert [word(each) for each in ("~/x", "--output=~/x", "--key=~a", "-x", "a=~/x", "~")] == [
        *("/home/me/x", "--output=/home/me/x", "--key=~a", "-x", "a=~/x", "/home/me"),
    ]
    with pytest.raises(ConfigError, match=r"/home/me/h\.yaml: cannot be read"):
        profiles.hardware("~/h.yaml")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        cli.main(["check", "~/none.yaml"])
    assert f"error: {tmp_path}/none.yaml: cannot be read" in capsys.readouterr().err


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for ask in (cache_folder, public.folder):
        with pytest.raises(
            InputRefused, match="no home is known of this user: set HOME, or XDG_CACHE"
        ):
            ask()
    with pytest.raises(InputRefused, match="no such home is known"):
        expanded("~/x")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert public.folder() == Path("/caches/mirage/traces")


@pytest.mark.parametrize("kind", ["host", "cuda"])
@pytest.mark.usefixtures("nobody")
def test_engines_of_a_user_without_name_and_home_have_both(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    folders = {name: Path("/run") / name for name in ("temporary", "cache", "rpc")}
    made = environment(
        Config.model_validate(
            {
                "device": {"memory": "1GiB", "kind": kind},
                "tenants": [{"name": "a", "model": "/m", "share": 50}],
            }
        ),
        SimpleNamespace(**folders),  # type: ignore[arg-type]
    )
    assert made["HOME"] == "/run/cache" and made["USER"].startswith("uid-")
    assert made["VLLM_CACHE_ROOT"].startswith("/run/cache/")
    monkeypatch.setenv("USER", made["USER"])
    assert getpass.getuser() == made["USER"]


def test_who_has_a_name_and_a_home_keeps_them() -> None:
    assert somebody(Path("/run")) == {}


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", sys.executable)])
def test_an_interpreter_that_cannot_be_run_is_one_line(
    error: OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that may not run the Python interpreter ends with exit code 2 and one line that
    says what to do.
    """
    with pytest.raises(SystemExit) as ended, exits(failures=()):
        raise error
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"mirage: error: {sys.executable}: Permission denied: install MIRAGE where this user may "
        "run it\n"
    )
