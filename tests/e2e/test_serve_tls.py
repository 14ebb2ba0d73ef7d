"""TLS of a real server with fake engines: its files, and reading them again."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
import yaml
from certified import Certified
from operated import Operated, around, content, mirage
from refusing import refused
from supervised import Served, serving, write_config

pytestmark = pytest.mark.e2e

TLS = {"http": {"tls": {"certificate": "tls/site.pem", "key": "tls/site.key"}}}


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    (tmp_path / "tls").mkdir()
    return Certified(tmp_path / "tls")


@pytest.fixture
def config(tmp_path: Path, certified: Certified) -> Path:
    path = write_config(tmp_path, "a")
    path.write_text(yaml.safe_dump(content("a", **TLS)))
    return path


def ask(served: Served, client: ssl.SSLContext, path: str, body: Any = None) -> tuple[int, str]:
    parts = urlsplit(served.url)
    assert parts.scheme == "https" and parts.hostname is not None
    connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=60, context=client)
    with closing(connection):
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        connection.request("POST" if body else "GET", path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def is_believed(served: Served, client: ssl.SSLContext) -> bool:
    try:
        return ask(served, client, "/live")[0] == 200
    except ssl.SSLCertVerificationError:
        return False


def test_a_renewed_certificate_holds_when_told(
    short: Path, config: Path, certified: Certified
) -> None:
    with serving(config, environment=around(short)) as served:
        served.drain()
        site, first = Operated(served, short), certified.client
        assert site.ask("GET", "/tenants")[1]["server"]["url"] == served.url
        body = {"model": "a", "prompt": "pids"}
        assert ask(served, first, "/v1/completions", body)[0] == 200
        router = ask(served, first, "/metrics")[1]
        second = certified.renewed()
        assert is_believed(served, first) and not is_believed(served, second)
        served.process.send_signal(signal.SIGHUP)
        site.until(lambda: is_believed(served, second))
        assert not is_believed(served, first)
        told = f"mirage: SIGHUP: certificate: {certified.section.certificate}\n"
        site.until(lambda: told in served.log)

        certified.section.key.write_bytes(trustme.CA().issue_cert("x").private_key_pem.bytes())
        served.process.send_signal(signal.SIGHUP)
        wrong = "mirage: SIGHUP: the certificate stays as it was: http.tls.key: "
        site.until(lambda: any(line.startswith(wrong) for line in served.log))
        assert is_believed(served, second)
        ends = 'mirage_router_ends_total{cause="died"}'
        assert f"{ends} 0.0" in router and f"{ends} 0.0" in ask(served, second, "/metrics")[1]
        assert served.end(signal.SIGTERM)[0] == 0
    assert f"mirage: ready at {served.url} in " in "".join(served.log)
    assert "Traceback" not in "".join(served.log)


def test_a_router_that_is_killed_waits_for_a_certificate(
    short: Path, config: Path, certified: Certified
) -> None:
    with serving(config, environment=around(short)) as served:
        served.drain()
        site, key = Operated(served, short), certified.section.key
        key.chmod(0o644)
        (router,) = (p for p in served.family() if is_router(p) and p.children() == [])
        router.kill()
        said = "nobody can be served: http.tls.key: the mode 0644"
        site.until(lambda: any(said in line for line in served.log))
        key.chmod(0o600)
        site.until(lambda: is_believed(served, certified.client))
        assert served.end(signal.SIGTERM)[0] == 0
    assert sum(said in line for line in served.log) == 1


def is_router(process: Any) -> bool:
    return "mirage.serve.router.process" in process.cmdline()


def test_another_server_goes_on_with_the_router(
    tmp_path: Path, short: Path, config: Path, certified: Certified
) -> None:
    told = content("a", **TLS)
    told["tenants"] = [{**one, "start": "eager"} for one in told["tenants"]]
    config.write_text(yaml.safe_dump(told))
    with serving(config, environment=around(short), lease_s=300) as first:
        first.drain()
        first.until("it has memory", lambda: held(first, certified.client))
        first.process.kill()
        first.process.wait()
    client = certified.renewed()
    with serving(config, environment=around(short), lease_s=300) as second:
        second.drain()
        assert second.url == first.url
        second.until("the certificate is renewed", lambda: is_believed(second, client))
        second.process.kill()
        second.process.wait()
    told["http"] = {}
    config.write_text(yaml.safe_dump(told))
    with serving(config, environment=around(short), lease_s=300) as third:
        third.drain()
        assert third.request("GET", "/live")[0] == 200
        said = "the router that was left has another address"
        third.until("it says so", lambda: any(said in line for line in third.log))
        assert third.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


def held(served: Served, client: ssl.SSLContext) -> bool:
    told = json.loads(ask(served, client, "/mirage/state")[1]).get("tenants", {})
    return bool(told.get("a", {}).get("held_bytes", 0) > 1310720)


def test_what_measures_has_plain_http(short: Path, config: Path, certified: Certified) -> None:
    certified.section.key.unlink()
    with serving(config, "--no-tls", environment=around(short)) as served:
        assert served.url.startswith("http://")
        assert served.request("GET", "/live")[0] == 200


def test_the_files_may_be_links_that_change(
    tmp_path: Path, short: Path, config: Path, certified: Certified
) -> None:
    """The folder of the certificate is a link, which is changed to another folder, as tools that
    renew certificates do. After SIGHUP the server uses the new certificate.
    """
    (tmp_path / "tls").rename(tmp_path / "first")
    (tmp_path / "tls").symlink_to("first")
    (tmp_path / "second").mkdir()
    second = Certified(tmp_path / "second").client
    with serving(config, environment=around(short)) as served:
        assert is_believed(served, certified.client)
        (tmp_path / "tls").unlink()
        (tmp_path / "tls").symlink_to("second")
        served.process.send_signal(signal.SIGHUP)
        Operated(served, short).until(lambda: is_believed(served, second))


def test_what_cannot_be_used_is_one_line(
    short: Path, tmp_path: Path, config: Path, certified: Certified
) -> None:
    pem, key = certified.section.certificate, certified.section.key

    def said() -> str:
        lines = {refused(mirage(short, word, config)) for word in ("check", "serve")}
        assert len(lines) == 1
        return lines.pop()

    certificate, own = pem.read_bytes(), key.read_bytes()
    key.chmod(0o640)
    assert said() == (
        f"http.tls.key: the mode 0640 of {key} lets others read or change it: chmod 600 {key}"
    )
    key.chmod(0o600)
    key.write_bytes(trustme.CA().issue_cert("x").private_key_pem.bytes())
    assert said() == (
        f"http.tls.key: {key} does not belong to the certificate {pem}: name the key that it was "
        "made for"
    )
    key.write_bytes(own)
    encrypted = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:abcd"]
    key.write_bytes(subprocess.run(encrypted, capture_output=True, check=True).stdout)
    assert said() == f"http.tls.key: {key} has a passphrase: write it without one"
    key.write_bytes(own)
    pem.write_text("no certificate")
    assert said().startswith(f"http.tls: {pem} and {key} cannot be used (")
    pem.unlink()
    assert said() == (
        f"http.tls.certificate: {pem} cannot be read (No such file or directory): name a file "
        "that this user may read"
    )
    pem.write_bytes(certificate)
    key.unlink()
    assert said().startswith(f"http.tls.key: {key} cannot be read (No such file or directory)")
    only = {"http": {"tls": {"certificate": str(pem)}}}
    config.write_text(yaml.safe_dump(content("a", **only)))
    assert "http.tls.key: " in said()
