"""Weights that are kept in host memory while tenants change and are removed; engines are fakes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from model_folder import make_folder
from operated import Operated, content, operated, tenant

from mirage.keeper.client import KeeperClient, MasterRefused
from vmm.host_file import HostFile

pytestmark = pytest.mark.e2e

SIZE = 1 << 20
FIELDS = ("masters", "used_bytes", "idle_bytes")


class Kept:
    """A server whose tenants a and b keep their weights. The test connects to its keeper as an
    engine would.
    """

    def __init__(self, site: Operated, short: Path) -> None:
        self.site = site
        self.ask, self.until = site.ask, site.until
        self._short = short

    def begins(self, name: str, identity: str = "x") -> KeeperClient:
        """Connect to the keeper as an engine of tenant `name`, and fill the master if the keeper
        says so.
        """
        (path,) = self._short.glob("mirage-*/keeper.sock")
        client = KeeperClient(path, name, identity, SIZE)
        if not client.whole:
            HostFile.grown(client.fd, SIZE).close()
            client.filled()
        return client

    def keeps(self, *names: str) -> None:
        """Let an engine of each of these tenants connect and end, so that its weights are kept."""
        for client in [self.begins(name) for name in names]:
            client.close()
        self.until(lambda: self.masters() == (1, 0, SIZE))
        assert {self.weights(name) for name in names} == {"host"}

    def masters(self) -> tuple[int, ...] | None:
        """Number of masters, their used bytes and their idle bytes. Metrics and state of the server
        must agree.
        """
        self.until(lambda: self.measured() == self.told())
        return self.told()

    def told(self) -> tuple[int, ...] | None:
        found = self.site.server.request("GET", "/mirage/state")[1].get("kept_weights")
        return found and tuple(found[field] for field in FIELDS)

    def measured(self) -> tuple[int, ...] | None:
        text = self.site.server.request("GET", "/metrics")[1].decode()
        lines = [line.split() for line in text.splitlines()]
        names = [f"mirage_weights_{field}" for field in FIELDS]
        found = {line[0]: float(line[1]) for line in lines if line[0] in names}
        return tuple(found[name] for name in names) if found else None

    def loses_its_keeper(self) -> None:
        """Kill the keeper, and wait until running engines have given their masters
        to the next one.
        """
        before = self.masters()
        family = self.site.server.family()
        (keeper,) = (one for one in family if "mirage.keeper.process" in one.cmdline())
        keeper.send_signal(signal.SIGKILL)
        up = "another keeper of weights is up"
        self.until(lambda: any(up in line for line in self.site.server.log))
        self.until(lambda: self.masters() == before)

    def weights(self, name: str) -> Any:
        return self.ask("GET", f"/tenants/{name}")[1]["weights"]


@pytest.fixture
def kept(tmp_path: Path, short: Path) -> Iterator[Kept]:
    with operated(tmp_path / "s", short, content("a", "b")) as site:
        yield Kept(site, short)


def test_a_removed_tenant_leaves_no_master(kept: Kept) -> None:
    kept.keeps("a", "b")
    kept.site.apply(content("b"))
    kept.until(lambda: kept.site.names() == ["b"])
    assert kept.masters() == (1, 0, SIZE)  # it is the other's, too
    kept.site.apply(content("c"))
    kept.until(lambda: kept.site.names() == ["c"])
    kept.until(lambda: kept.masters() == (0, 0, 0))
    kept.site.apply(content("b", "c"))
    assert kept.weights("b") == "disk"


def test_one_that_keeps_no_more_or_has_other_weights_lets_go(kept: Kept) -> None:
    kept.keeps("a")
    assert kept.ask("PATCH", "/tenants/a", {"keep_alive": "1h"})[0] == 200
    assert kept.ask("PATCH", "/tenants/a", {"share": 30})[0] == 200
    assert kept.ask("PATCH", "/tenants/a", {"engine_args.seed": 3})[0] == 200
    assert (kept.weights("a"), kept.masters()) == ("host", (1, 0, SIZE))
    assert kept.ask("PATCH", "/tenants/a", {"keep_weights": "none"})[0] == 200
    kept.until(lambda: kept.masters() == (0, 0, 0))
    assert kept.weights("a") == "disk"
    kept.keeps("b")
    assert kept.ask("PATCH", "/tenants/b", {"engine_args.load_format": "dummy"})[0] == 200
    kept.until(lambda: kept.weights("b") == "disk")
    assert kept.masters() == (0, 0, 0)
    kept.keeps("b")
    make_folder(kept.site.server.config.parent / "other")
    assert kept.ask("PATCH", "/tenants/b", {"model": "other"})[0] == 200
    kept.until(lambda: kept.weights("b") == "disk")
    assert kept.masters() == (0, 0, 0)


def test_what_an_engine_uses_goes_when_that_has_ended(kept: Kept) -> None:
    engine = kept.begins("a")
    kept.site.apply(content("b"))
    kept.until(lambda: kept.site.names() == ["b"])
    kept.until(lambda: kept.masters() == (1, SIZE, 0))
    engine.close()
    kept.until(lambda: kept.masters() == (0, 0, 0))


def test_another_keeper_keeps_none_for_a_tenant_that_was_removed(kept: Kept) -> None:
    removed, stays = kept.begins("a", "x"), kept.begins("b", "y")
    for engine in (removed, stays):
        engine.outlive()
    kept.site.apply(content("b"))
    kept.until(lambda: kept.site.names() == ["b"])
    kept.loses_its_keeper()
    for engine in (removed, stays):
        engine.close()
    kept.until(lambda: kept.masters() == (1, 0, SIZE))
    assert kept.weights("b") == "host"


def test_another_keeper_keeps_none_that_a_tenant_has_no_more(kept: Kept) -> None:
    """The keeper is killed while an engine with a tenant's former weights drains. The next keeper
    drops those weights when that engine ends, and keeps the tenant's present ones.
    """
    runs = kept.site.server.open("POST", "/v1/completions", {"model": "a", "prompt": "silent"})
    kept.until(lambda: kept.ask("GET", "/tenants/a")[1]["running"])
    engine = kept.begins("a", "x")
    engine.outlive()
    make_folder(kept.site.server.config.parent / "other")
    assert kept.ask("PATCH", "/tenants/a?drain_s=600", {"model": "other"})[0] == 200
    kept.loses_its_keeper()
    assert kept.site.state("a") == "draining"
    engine.close()
    kept.until(lambda: kept.masters() == (0, 0, 0))
    runs.close()
    assert kept.site.complete("a")[0] == 200
    kept.begins("a", "y").close()
    kept.until(lambda: kept.masters() == (1, 0, SIZE))


def test_the_first_tenant_that_keeps_weights_has_a_keeper(tmp_path: Path, short: Path) -> None:
    told = content(tenants=[tenant("a", keep_weights="none")])
    with operated(tmp_path / "s", short, told) as site:
        kept = Kept(site, short)
        assert kept.masters() is None
        site.apply(told | {"tenants": [*told["tenants"], tenant("b")]})

        def begins() -> bool:
            with suppress(MasterRefused, ValueError):  # none is up yet
                kept.keeps("b")
                return True
            return False

        site.until(begins)
        assert not any("another keeper" in line for line in site.server.log)
