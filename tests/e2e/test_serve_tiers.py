"""The host pool of `mirage serve`: engines are told of it, it is told who lives, it
ends with all.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from supervised import WITH_FAKES, Served, assert_gone, serving, write_config

from mirage.config import ConfigError, load
from mirage.serve.device.tiers import TierPool
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import Key, Lookup, Medium, Member
from mirage.tiers.region import Region

pytestmark = pytest.mark.e2e

BLOCK = 65536
TIERS = {"host": {"bytes": 8 * BLOCK, "policy": "arc"}}


def pool_of(served: Served, tenant: str) -> PoolClient:
    folder = served.run_folder()
    assert folder is not None
    return PoolClient(folder / "tiers.sock", Member(tenant, b"w", BLOCK), answer_s=10)


def told(served: Served, tenant: str) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["host_pool"]["tenants"][tenant])


def keys(*numbers: int) -> list[Key]:
    return [Key(b"%d" % number) for number in numbers]


def test_it_hears_of_engines_and_is_told_of(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b", tiers=TIERS)) as served:
        # In the place of the engine of a, whose processes the server knows.
        with closing(pool_of(served, "a")) as a, closing(pool_of(served, "b")) as b:
            places = a.reserve(keys(1, 2, 3))
            a.memory(Medium.HOST)[places[keys(1)[0]].offset] = 7
            a.commit(keys(1))
            b.seek("r", keys(1, 9))
            served.until("it is found", lambda: b.found("r", keys(1)[0]) is Lookup.READY)
            assert b.found("r", keys(9)[0]) is Lookup.ABSENT
            (place,) = b.places("r", keys(1))
            assert b.memory(Medium.HOST)[place.offset] == 7
            served.until("it is booked", lambda: told(served, "a")["held_bytes"] == 2 * BLOCK)
            assert told(served, "a")["reserved_bytes"] == 2 * BLOCK
            assert told(served, "b")["pinned_bytes"] == BLOCK
            assert told(served, "a")["standing"] == "idle"

            ask = {"model": "a", "prompt": "pids"}
            os.kill(served.request("POST", "/v1/completions", ask)[1]["core"], signal.SIGKILL)
            served.until("its places are free", lambda: told(served, "a")["reserved_bytes"] == 0)
            assert a.found("r", keys(1)[0]) is Lookup.ABSENT
            assert b.found("r", keys(1)[0]) is Lookup.READY

            metrics = served.request("GET", "/metrics")[1].decode()
            for line in (
                'mirage_tier_bytes{medium="host",what="budget"} 524288.0',
                'mirage_tier_held_bytes{medium="host",tenant="b"} 65536.0',
                'mirage_tier_hits_total{medium="host",tenant="b"} 1.0',
                'mirage_tier_misses_total{medium="host",tenant="b"} 1.0',
                'mirage_tier_stored_bytes_total{medium="host",tenant="a"} 65536.0',
            ):
                assert line in metrics
            health = served.request("GET", "/health")[1]["host_pool"]
            assert (health["status"], health["budget_bytes"]) == ("ok", 8 * BLOCK)
        folder, family = served.run_folder(), served.family()
        assert served.end(signal.SIGTERM)[0] == 0
        assert folder is not None and not folder.exists()
        assert_gone(family)


def test_nothing_is_left_of_a_killed_server(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", tiers=TIERS)) as served:
        folder, family = served.run_folder(), served.family()
        assert folder is not None
        with closing(pool_of(served, "a")) as pool:
            assert len(pool.reserve(keys(1, 2))) == 2
            served.process.kill()
            served.process.wait()
            assert_gone(family)
            assert pool.reserve(keys(3)) == {}
            pool.seek("r", keys(1))
            assert pool.found("r", keys(1)[0]) is Lookup.ABSENT
        assert not folder.exists()


def test_a_tenant_that_is_given_up_has_no_share(tmp_path: Path) -> None:
    environment = {"FAKE_ENGINE": "dies:b", "FAKE_REST_S": "1000"}
    config = write_config(tmp_path, "a", "b", tiers=TIERS)
    with serving(config, environment=environment) as served:
        served.until("it is heard", lambda: told(served, "b")["standing"] == "evictable")
        assert told(served, "b")["share_bytes"] == 0
        assert told(served, "a")["share_bytes"] == 4 * BLOCK, "as before: what b leaves is borrowed"


def test_a_pool_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(nbytes: int) -> Region:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(Region, "create", fail)
    tiers = TierPool(load(write_config(tmp_path, "a", tiers=TIERS)), tmp_path / "tiers.sock")
    with pytest.raises(ConfigError, match=r"no host pool can be made \(Cannot allocate memory\)"):
        tiers.start()
    asyncio.run(tiers.stop())
    assert not (tmp_path / "tiers.sock").exists()


def test_a_folder_that_another_server_has_is_one_line(tmp_path: Path) -> None:
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "1MiB", "keep": True}
    config = write_config(tmp_path, "a", tiers=TIERS | {"ssd": ssd})
    with serving(config) as served:
        told = served.request("GET", "/mirage/state")[1]["ssd"]
        assert (told["capacity_bytes"], told["blocks"], told["failed"]) == (1 << 20, 0, False)
        other = TierPool(load(config), tmp_path / "tiers.sock")
        with pytest.raises(ConfigError, match=r"tiers.ssd.directory .*another process has it: nam"):
            other.start()
        asyncio.run(other.stop())
    assert not (tmp_path / "tiers.sock").exists()


@pytest.mark.parametrize("options", [["--policy", "static"], ["--no-tiers"]])
def test_without_one_nothing_is_told(tmp_path: Path, options: list[str]) -> None:
    with serving(write_config(tmp_path, "a", tiers=TIERS), *options) as served:
        assert "host_pool" not in served.request("GET", "/mirage/state")[1]
        assert "host_pool" not in served.request("GET", "/health")[1]
        assert b"mirage_tier" not in served.request("GET", "/metrics")[1]
        folder = served.run_folder()
        assert folder is not None and not (folder / "tiers.sock").exists()


def test_check_prints_it(tmp_path: Path) -> None:
    peer = {"devices": {"gpu1": "1MiB", "gpu2": "2MiB"}, "backed": False}
    config = write_config(tmp_path, "a", tiers=TIERS | {"peer": peer})
    words = [sys.executable, WITH_FAKES, "check", str(config)]
    environment = {**os.environ, "FAKE_ENGINE": ""}
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    assert "host pool 0.5 MiB for KV blocks that leave the device, arc" in done.stdout
    assert "a: up to " in done.stdout
    assert "peers above it: gpu1 1.0 MiB, gpu2 2.0 MiB; what they want back is dropped" in (
        done.stdout
    )
