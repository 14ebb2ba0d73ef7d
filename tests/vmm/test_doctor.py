"""Findings of `mirage doctor` about host memory and a GPU, over the driver's stand-in."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from mirage.config import Config, ConfigError
from mirage.doctor import engine, gpu, host
from mirage.doctor.command import served_from, show
from mirage.doctor.finding import Finding, FindingState, limited, missing, works
from mirage.serve.device.tiers import granule_of
from mirage.serve.launch.preflight import _check_peers
from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import libc

pytestmark = pytest.mark.vmm


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=1 << 30, granularity=2 << 20)
    yield made
    assert not any(made.leaks().values()), made.leaks()
    made.reset()


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {f.what: f for f in findings}


def test_a_gpu_that_can_everything(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "prefer", lambda *_: 0)  # as outside of a container
    found = by_name(gpu.findings(0))
    assert {f.state for f in found.values()} == {FindingState.WORKS}, found
    assert found["device"].found == "MIRAGE stand-in, 1.0 GiB, compute 9.0"
    assert "2048 KiB" in found["virtual memory management"].found
    assert "GB/s" in found["link, host to device"].found


def test_a_driver_that_is_older_than_what_calls_it(standin: StandIn) -> None:
    standin.version(12040)
    found = by_name(gpu.findings(0))
    assert found["driver"].state is FindingState.MISSING
    assert "CUDA 12.4, and there is cuda-python for CUDA 13" in found["driver"].found
    assert "580" in found["driver"].advice and "link, host to device" not in found
    standin.version(13010)
    assert by_name(gpu.findings(0))["driver"].state is FindingState.WORKS


@pytest.mark.parametrize("error", [800, 801])
def test_a_gpu_that_refuses_to_lock_host_memory(standin: StandIn, error: int) -> None:
    """The GPU refuses to lock host memory, because it is not permitted or (in confidential mode)
    not supported. The finding advises not to move layers.
    """
    standin.fail(1, "cuMemHostRegister", error)
    found = by_name(gpu.findings(0))
    assert found["locked host memory"].state is FindingState.LIMITED
    assert "max_percent: 0" in found["locked host memory"].advice
    assert "link, host to device" not in found
    assert served_from([*found.values()]) == served_from([*by_name(gpu.findings(0)).values()])


@pytest.mark.parametrize(("refused", "state"), [(0, "ok"), (errno.EPERM, "limited")])
def test_a_container_that_refuses_memory_near_the_gpu(
    monkeypatch: pytest.MonkeyPatch, refused: int, state: str
) -> None:
    asked: list[tuple[int, int]] = []

    def prefer(address: int, nbytes: int, node: int) -> int:
        asked.append((nbytes, node))
        return refused

    monkeypatch.setattr(libc, "prefer", prefer)
    (found,) = gpu._near(3)
    assert asked == [(2 << 20, 3)] and found.state.value == state
    if refused:
        assert "mbind is refused (Operation not permitted)" in found.found
        assert "CAP_SYS_NICE" in found.advice


def test_the_kernels_own_word_on_a_node_that_is_not_there() -> None:
    (found,) = gpu._near(999)
    assert found.state is FindingState.LIMITED and "mbind is refused" in found.found


def test_a_machine_without_numa_nodes_has_no_such_line() -> None:
    assert list(gpu._near(None)) == []


def test_a_device_that_is_not_there(standin: StandIn) -> None:
    found = by_name(gpu.findings(3))
    assert found["driver and device"].state is FindingState.MISSING
    assert "device 3" in found["driver and device"].found


def test_a_device_that_cannot_map(standin: StandIn) -> None:
    standin.flags(vmm_supported=False)
    found = by_name(gpu.findings(0))
    assert found["virtual memory management"].state is FindingState.MISSING
    assert "link, host to device" not in found, "nothing that needs it is tried"


def test_a_device_that_exports_nothing_is_said(standin: StandIn) -> None:
    standin.flags(shareable=False)
    found = by_name(gpu.findings(0))["pages between processes"]
    assert found.state is FindingState.LIMITED and "tiers.peer" in found.advice


def test_gpus_that_lend_memory(standin: StandIn) -> None:
    assert "memory of other GPUs" not in by_name(gpu.findings(0)), "there is one"
    standin.flags(devices=3)
    found = by_name(gpu.findings(1))["memory of other GPUs"]
    assert (found.state, found.found) == (FindingState.WORKS, "reaches that of GPU 0, 2")
    standin.peers(False)
    found = by_name(gpu.findings(1))["memory of other GPUs"]
    assert found.state is FindingState.LIMITED and "tiers.peer" in found.advice


def lending(nbytes: int = 1 << 22, device: int = 1) -> Config:
    return Config.model_validate(
        {
            "device": {"kind": "cuda", "memory": 1 << 29},
            "tenants": [{"name": "a", "model": "/a", "share": 100}],
            "tiers": {
                "host": {"bytes": 1 << 20},
                "peer": {"devices": {"gpu1": {"device": device, "bytes": nbytes}}},
            },
        }
    )


def test_peers_are_looked_at_before_anything_starts(standin: StandIn) -> None:
    standin.flags(devices=2)
    _check_peers(lending())
    assert granule_of(lending().tiers.peer) == 2 << 20
    for config, words in (
        (lending(device=2), "there is no NVIDIA device 2: 2 can be seen"),
        (lending(nbytes=1 << 20), r"bytes is 1.0 MiB, GPU 1 lends 2.0 MiB to 1.0 GiB"),
        (lending(nbytes=2 << 30), r"bytes is 2.0 GiB, GPU 1 lends"),
    ):
        with pytest.raises(ConfigError, match=rf"^tiers.peer.devices.gpu1.*{words}"):
            _check_peers(config)
    standin.peers(False)
    with pytest.raises(ConfigError, match="GPU 0 cannot reach the memory of GPU 1"):
        _check_peers(lending())
    standin.peers(True)
    standin.flags(devices=2, shareable=False)
    with pytest.raises(ConfigError, match="cannot share memory by file descriptors"):
        _check_peers(lending())


@pytest.mark.parametrize("call", ["cuMemCreate", "cuDevicePrimaryCtxRetain"])
def test_a_link_that_cannot_be_measured(standin: StandIn, call: str) -> None:
    standin.fail(1, call)
    found = by_name(gpu.findings(0))
    assert found["link"].state is FindingState.MISSING and found["link"].advice


def test_host_memory(standin: StandIn) -> None:
    found = by_name(host.findings())
    assert found["pages in reserved addresses"].state is FindingState.WORKS
    assert "GB/s" in found["pages in reserved addresses"].found


def worker(kind: str, state: FindingState = FindingState.WORKS) -> Finding:
    return Finding(engine.TOPIC, engine.worker(kind), state, "")


BOTH = [worker("host"), worker("cuda")]


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (BOTH, ["host", "cuda"]),
        ([*BOTH, limited("host", "lockable memory", "", "x")], ["host", "cuda"]),
        ([*BOTH, missing("GPU", "driver and device", "", "x")], ["host"]),
        ([*BOTH, missing("engine", "hooks", "", "x")], []),
        ([*BOTH, missing("host", "pages", "", "x")], ["cuda"]),
        (
            [worker("host"), worker("cuda", FindingState.LIMITED), works("GPU", "link", "")],
            ["host"],
        ),
    ],
)
def test_what_can_be_served_from(found: list[Finding], kinds: list[str]) -> None:
    assert served_from(found) == kinds


def test_a_path_in_a_narrow_terminal_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = f"/sys/{'x' * 90}/enabled"
    show([works("host", "huge pages as device memory", f"write advise to {path}")], ["host"])
    assert path in "".join(capsys.readouterr().out.split())
