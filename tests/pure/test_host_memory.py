"""Memory and addresses of a process in a container, and what is refused over them."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from mirage.config import Config, ConfigError
from mirage.doctor import host
from mirage.doctor.finding import FindingState
from mirage.serve.launch import host_limits, preflight
from mirage.units import GIB, KIB, MIB
from vmm.host_memory import HostMemory, host_memory, limit_files, promised_bytes

pytestmark = pytest.mark.pure

V2 = "32 31 0:38 {root} {at} rw,relatime - cgroup2 cgroup2 rw"
V1 = "33 31 0:32 {root} {at} rw,relatime shared:9 - cgroup cgroup rw,memory"
OTHER_V1 = "34 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


@pytest.mark.parametrize(
    ("groups", "mounts", "files"),
    [
        ("0::/", V2.format(root="/", at="/c"), ["/c/memory.max"]),
        (
            "0::/a.slice/b.service",
            V2.format(root="/", at="/c"),
            ["/c/a.slice/b.service/memory.max", "/c/a.slice/memory.max", "/c/memory.max"],
        ),
        ("0::/../other", V2.format(root="/", at="/c"), ["/c/memory.max"]),
        (
            "0::/docker/1/x",
            V2.format(root="/docker/1", at="/c"),
            ["/c/x/memory.max", "/c/memory.max"],
        ),
        (
            "5:cpu:/z\n4:memory,hugetlb:/docker/1\n0::/",
            f"{OTHER_V1}\n{V1.format(root='/docker/1', at='/c/memory')}",
            ["/c/memory/memory.limit_in_bytes"],
        ),
        (
            "4:memory:/elsewhere\n0::/",
            f"{V1.format(root='/docker/1', at='/m')}\n{V2.format(root='/', at='/c')}",
            ["/m/memory.limit_in_bytes", "/c/memory.max"],
        ),
        ("0::/", V2.format(root="/", at=r"/my\040groups"), ["/my groups/memory.max"]),
        ("", V2.format(root="/", at="/c"), []),
        ("0::/", "nonsense\n1 2 - x", []),
    ],
)
def test_files_that_may_limit_a_process(groups: str, mounts: str, files: list[str]) -> None:
    assert list(map(str, limit_files(groups, mounts))) == files


def machine(folder: Path, limits: dict[str, str], meminfo: str = "") -> Path:
    """Folder like /proc of a process in the control group a/b (version 2). `limits` has the memory
    limit of each group by its folder.
    """
    (folder / "self").mkdir()
    (folder / "sys" / "vm").mkdir(parents=True)
    (folder / "self" / "cgroup").write_text("0::/a/b\n")
    (folder / "self" / "mountinfo").write_text(V2.format(root="/", at=folder / "groups"))
    for group, limit in limits.items():
        (folder / "groups" / group).mkdir(parents=True, exist_ok=True)
        (folder / "groups" / group / "memory.max").write_text(limit)
    (folder / "meminfo").write_text(meminfo)
    return folder


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"a/b": "max\n", ".": "max"}, None),
        ({"a/b": f"{2 * MIB}\n", "a": "max"}, ("a/b", 2 * MIB)),
        ({"a/b": f"{2 * MIB}\n", "a": f"{MIB}\n"}, ("a", MIB)),
        ({"a": f"{2**63}\n"}, None),
        ({"a": "many"}, None),
    ],
)
def test_the_least_limit_counts(
    tmp_path: Path, limits: dict[str, str], found: tuple[str, int] | None
) -> None:
    memory = host_memory(machine(tmp_path, limits))
    if found is None:
        assert memory == host_memory(tmp_path / "none")
        assert memory.whose == "this machine has" and memory.bytes > 2 * MIB
    else:
        file = tmp_path / "groups" / found[0] / "memory.max"
        assert memory == HostMemory(found[1], f"the control group's {file} allows")


def test_what_a_container_is_told_of_its_machine_counts(tmp_path: Path) -> None:
    assert host_memory(machine(tmp_path, {}, "MemTotal:  1000 kB\n")).bytes == 1000 * KIB


@pytest.mark.parametrize(("mode", "left"), [("2", 300 * KIB), ("0", None), ("1", None), ("", None)])
def test_memory_that_linux_still_promises(tmp_path: Path, mode: str, left: int | None) -> None:
    proc = machine(tmp_path, {}, "CommitLimit:     1000 kB\nCommitted_AS:     700 kB\n")
    (proc / "sys" / "vm" / "overcommit_memory").write_text(mode)
    assert promised_bytes(proc) == left


def config(tiers: dict[str, Any] | None = None, **device: Any) -> Config:
    tenant = {"name": "a", "model": "m", "share": 50}
    device = {"memory": "1GiB"} | device
    return Config.model_validate({"device": device, "tenants": [tenant], "tiers": tiers or {}})


def test_more_than_a_control_group_allows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = HostMemory(GIB - 1, "the control group's /c/memory.max allows")
    monkeypatch.setattr(preflight, "host_memory", lambda: group)
    with pytest.raises(ConfigError, match=r"^device.memory is 1.0 GiB, the control group's /c/mem"):
        preflight.preflight(config())
    with pytest.raises(ConfigError, match=r"^tiers.host.bytes is 1.0 GiB, the control group's /c"):
        preflight._check_host_tier(config({"host": {"bytes": "1GiB"}}, kind="cuda"))


HOST = {"host": {"bytes": "2GiB"}}


@pytest.mark.parametrize(
    ("tiers", "kind", "parts"),
    [
        ({}, "host", {"device": 1}),
        (HOST, "host", {"device": 1, "pool": 2}),
        (HOST | {"peer": {"devices": {"x": "4GiB"}}}, "host", {"device": 1, "peers": 4, "pool": 2}),
        (HOST, "cuda", {"pool": 2}),
        (HOST | {"peer": {"devices": {"x": {"bytes": "4GiB", "device": 1}}}}, "cuda", {"pool": 2}),
    ],
)
def test_more_than_linux_promises_is_refused(
    tiers: dict[str, Any], kind: str, parts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, taken = config(tiers, kind=kind), sum(parts.values()) * GIB
    wanted = {"device": 0, "peers": 0, "pool": 0} | parts
    assert host_limits.host_parts(made)._asdict() == {name: n * GIB for name, n in wanted.items()}
    monkeypatch.setattr(host_limits, "promised_bytes", lambda: taken)
    host_limits.check_limits(made)
    monkeypatch.setattr(host_limits, "promised_bytes", lambda: taken - 1)
    with pytest.raises(ConfigError, match=r" more \(CommitLimit in /proc/meminfo\)"):
        host_limits.check_limits(made)


def test_fewer_addresses_than_an_engine_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = host_limits.ENGINE_ADDRESSES + GIB // 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (needed, needed))
    host_limits.check_limits(config())
    assert host.addresses().state is FindingState.LIMITED
    monkeypatch.setattr(resource, "getrlimit", lambda _: (needed - 1, needed))
    with pytest.raises(ConfigError, match=r"bytes of addresses \(ulimit -v\), an engine takes"):
        host_limits.check_limits(config())
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    host_limits.check_limits(config())
    assert host.addresses().state is FindingState.WORKS


def test_an_error_names_the_limit_that_it_may_have_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "address_bytes", lambda: None)
    assert host_limits.with_causes("no thread") == "no thread"
    group = HostMemory(GIB, "the control group's /c/memory.max allows")
    monkeypatch.setattr(host_limits, "host_memory", lambda: group)
    assert host_limits.with_causes("it failed", 2) == (
        "it failed (the kernel's OOM killer ended 2 processes meanwhile: the control group's "
        "/c/memory.max allows 1.0 GiB)"
    )
    monkeypatch.setattr(host_limits, "address_bytes", lambda: 2 * GIB)
    words = host_limits.with_causes("no thread")
    assert words == "no thread (ulimit -v allows 2.0 GiB of addresses)"
