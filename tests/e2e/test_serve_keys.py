"""Keys of a real server with fake engines: places of tokens, and changes of keys."""

from __future__ import annotations

import http.client
import json
import signal
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import yaml
from operated import Operated, around, content, mirage, tenant
from supervised import Served, serving, write_config

pytestmark = pytest.mark.e2e

PLAIN = "a-plain-one-of-the-environment"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = write_config(tmp_path, "a")
    path.write_text(yaml.safe_dump(content("a", "b")))
    return path


def new_key(short: Path, *words: str | Path) -> str:
    """Token that `mirage keys new` prints."""
    done = mirage(short, "keys", "new", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


def ask(served: Served, path: str, token: str | None, body: Any = None) -> tuple[int, str]:
    parts = urlsplit(served.url)
    assert parts.hostname is not None
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request("POST" if body else "GET", path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def complete(served: Served, token: str | None, prompt: str = "pids") -> tuple[int, str]:
    return ask(served, "/v1/completions", token, {"model": "a", "prompt": prompt})


def test_a_token_stands_nowhere(tmp_path: Path, short: Path, config: Path) -> None:
    keys, logs, state = tmp_path / "keys.yaml", tmp_path / "logs", tmp_path / "state.json"
    tokens = [new_key(short, "ci", "--keys", keys, "--admin"), PLAIN]
    options = ["--keys", keys, "--log-level", "debug", "--log-dir", logs, "--state", state]
    environment = around(short) | {"MIRAGE_API_KEY": PLAIN, "FAKE_PROGRAMS": "1"}
    told: list[str] = []
    with serving(config, *map(str, options), environment=environment) as served:
        served.drain()
        site = Operated(served, short)
        for token in tokens:
            status, answer = complete(served, token)
            assert status == 200
            told.append(answer)
            for path in ("/metrics", "/health", "/mirage/state", "/v1/models", "/nowhere"):
                status, answer = ask(served, path, token)
                assert status == (404 if path == "/nowhere" else 200)
                told.append(answer)
            told.append(complete(served, token, "fail")[1])
            told.append(complete(served, f"{token}x")[1])
        told.append(json.dumps(site.ask("GET", "/tenants")[1]))
        told.append(site.mirage("ps").stdout)
        config.write_text(yaml.safe_dump(content() | {"tenants": [tenant("a", priority=1)]}))
        served.process.send_signal(signal.SIGHUP)
        site.until(state.exists)
        for process in served.family():
            with suppress(psutil.Error):
                told.append(" ".join(process.cmdline()))
                if process.pid != served.process.pid:
                    told.append(str(process.environ()))
        files = [path for path in [*logs.glob("*"), *short.rglob("*")] if path.is_file()]
        told += [path.read_bytes().decode(errors="replace") for path in files]
        told += [state.read_text(), served.ready_file.read_text(), keys.read_text()]
        assert served.end(signal.SIGTERM)[0] == 0
        told.append("".join(served.log))
    assert files and any("--uds" in one for one in told)
    assert 'mirage_key_requests_total{key="ci",model="a",status="200"} 1.0' in "".join(told)
    for token in tokens:
        assert not [one for one in told if token in one]


def test_keys_are_read_again_when_told(tmp_path: Path, short: Path, config: Path) -> None:
    keys = tmp_path / "keys.yaml"
    first = new_key(short, "ci", "--keys", keys)
    with serving(config, "--keys", str(keys), environment=around(short)) as served:
        served.drain()
        site = Operated(served, short)
        second = new_key(short, "ci", "--keys", keys)
        assert (complete(served, first)[0], complete(served, second)[0]) == (200, 401)
        done = site.mirage("keys", "reload")
        assert (done.returncode, done.stdout) == (0, f"keys: 2 of {keys}\n")
        assert (complete(served, first)[0], complete(served, second)[0]) == (200, 200)
        entries = yaml.safe_load(keys.read_text())["keys"]
        keys.write_text(yaml.safe_dump({"keys": entries[1:]}))
        served.process.send_signal(signal.SIGHUP)
        site.until(lambda: complete(served, first)[0] == 401)
        keys.write_text("keys: 3\n")
        done = site.mirage("keys", "reload")
        assert done.returncode == 2
        assert f"the keys stay as they were: {keys}: keys: found 3" in done.stderr
        served.process.send_signal(signal.SIGHUP)
        said = f"mirage: SIGHUP: the keys stay as they were: {keys}: keys: found 3, write a list\n"
        site.until(lambda: said in served.log)
        assert complete(served, second)[0] == 200
        assert f"mirage: keys: 1 of {keys}\n" in served.log
        assert f"mirage: SIGHUP: keys: 1 of {keys}\n" in served.log


def test_a_server_without_keys_has_none_to_reload(short: Path, config: Path) -> None:
    with serving(config, environment=around(short)) as served:
        done = Operated(served, short).mirage("keys", "reload")
    assert done.returncode == 2
    assert "this server asks for no keys: start it with --keys FILE" in done.stderr


def test_other_machines_are_not_let_in_without_keys(short: Path, config: Path) -> None:
    done = mirage(short, "serve", config, "--host", "0.0.0.0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "mirage: error: --host 0.0.0.0 lets other machines in, and no key is asked for: give "
        "--keys FILE (mirage keys new makes one), or --no-keys\n"
    )


def test_a_limit_changes_while_the_server_runs(tmp_path: Path, short: Path, config: Path) -> None:
    def told(**limits: int) -> str:
        return yaml.safe_dump(content() | {"tenants": [tenant("a", limits=limits)]})

    config.write_text(told(requests_per_minute=1))
    with serving(config, environment=around(short)) as served:
        site = Operated(served, short)
        assert complete(served, None)[0] == 200
        assert complete(served, None)[0] == 429
        served.drain()
        done = site.mirage("tenants", "set", "a", "limits.requests_per_minute=3")
        assert done.returncode == 0, done.stderr
        assert [complete(served, None)[0] for _ in range(3)] == [200, 200, 429]
        done = site.mirage("tenants", "set", "a", "limits=", "limits.n=1")
        assert done.returncode == 0, done.stderr
        body = {"model": "a", "prompt": "pids", "n": 2}
        assert ask(served, "/v1/completions", None, body)[0] == 400
        assert [complete(served, None)[0] for _ in range(3)] == [200] * 3


# -- the command ----------------------------------------------------------------------------


def test_a_new_key_is_printed_once(tmp_path: Path, short: Path) -> None:
    done = mirage(short, "keys", "new", "ci", "--models", "a,b", "--expires", "30d")
    token, *lines = done.stdout.splitlines()
    assert token.startswith("mirage-") and len(token) == 50
    (entry,) = yaml.safe_load("\n".join(lines))["keys"]
    assert (entry["name"], entry["models"]) == ("ci", ["a", "b"])
    assert token not in "\n".join(lines)


def test_a_file_is_made_and_added_to_for_its_owner_alone(tmp_path: Path, short: Path) -> None:
    keys = tmp_path / "keys.yaml"
    tokens = {
        new_key(short, "ci", "--keys", keys, "--models", "a", "--expires", "12h"),
        new_key(short, "ci", "--keys", keys),
        new_key(short, "prom", "--keys", keys, "--models", "none", "--metrics"),
    }
    assert len(tokens) == 3 and stat.S_IMODE(keys.stat().st_mode) == 0o600
    done = mirage(short, "keys", "list", keys)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[2]) for row in rows[1:]] == [("ci", "a"), ("ci", "a"), ("prom", "metrics")]
    assert [row[3] == "never" for row in rows[1:]] == [False, True, True]
    assert not any(token in done.stdout + keys.read_text() for token in tokens)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["new"], "keys new needs a NAME"),
        (["list"], "keys list needs a FILE"),
        (["new", "a b"], "keys.0.name: found 'a b', write letters, digits and . _ @ - alone"),
        (["new", "a", "--models", "none"], "a opens nothing"),
        (["new", "a", "--expires", "30"], "--expires '30': write hours, days or weeks"),
        (["list", "/nowhere"], "/nowhere: cannot be read (No such file or directory)"),
    ],
)
def test_what_cannot_be_is_one_line(short: Path, words: list[str], line: str) -> None:
    done = mirage(short, "keys", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr and len(done.stderr.splitlines()) == 1


def test_check_says_what_keys_do(tmp_path: Path, short: Path, config: Path) -> None:
    keys = tmp_path / "keys.yaml"
    new_key(short, "ci", "--keys", keys, "--models", "a,c")
    done = mirage(short, "check", config, "--keys", keys)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [f"keys: 1 of {keys}", "key ci: a, c; not here: c"]
    keys.chmod(0o644)
    done = mirage(short, "check", config, "--keys", keys)
    assert done.returncode == 2 and f"chmod 600 {keys}" in done.stderr
