"""Operators' commands: lines about changes of states, acts that are refused or take effect, and the
choice of the server.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mirage.config import Config, ConfigError
from mirage.control.roster.states import LifeState
from mirage.errors import CommandFailed, InputRefused
from mirage.serve.admin.acts import ActedUpon, foretold, obstacle, target
from mirage.serve.admin.address import chosen, listening
from mirage.serve.admin.commands import _until, _until_settled
from mirage.serve.admin.forms import (
    ActTaken,
    AdapterStatus,
    DeclaredTenant,
    DeviceStatus,
    OperatorAct,
    StateChange,
    TenantStatus,
    TenantsTold,
)
from mirage.serve.admin.journal import SeenState, StateJournal
from mirage.serve.admin.one_server import identity, sole_server
from mirage.serve.admin.shown import described, process_table, span, until
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.models.weights_progress import AheadState, WeightsComing
from mirage.units import MIB

pytestmark = pytest.mark.pure


# -- states ------------------------------------------------------------------------------


def test_a_change_is_told_once_with_what_was_before() -> None:
    journal = StateJournal({"a": SeenState("ready", ""), "b": SeenState("stopped", "")}, 1.0)
    assert journal.look({"a": SeenState("ready", ""), "b": SeenState("stopped", "")}, 2.0) == []
    found = {"a": SeenState("down", "it died"), "b": SeenState("stopped", "")}
    (change,) = journal.look(found, 3.0)
    assert (change.t, change.tenant, change.before) == (3.0, "a", "ready")
    assert (change.state, change.reason) == ("down", "it died")
    assert journal.look(found, 4.0) == []
    assert (journal.since("a"), journal.since("b")) == (3.0, 1.0)


def test_states_that_lasted_no_time_are_changes_as_well() -> None:
    journal = StateJournal({"a": SeenState("draining", "")}, 1.0)
    found = {"a": SeenState("waking", "why", passed=("sleeping", "waking"))}
    changes = journal.look(found, 2.0, 7)
    assert [(c.before, c.state, c.reason, c.revision) for c in changes] == [
        ("draining", "sleeping", "", 7),
        ("sleeping", "waking", "why", 7),
    ]
    again = {"a": SeenState("waking", "", passed=("ready", "waking"))}
    assert [c.state for c in journal.look(again, 3.0)] == ["ready", "waking"]
    assert journal.look({"a": SeenState("waking", "")}, 4.0) == []


def test_tenants_come_from_nowhere_and_go_there() -> None:
    journal = StateJournal({"a": SeenState("ready", "")}, 1.0)
    (came,) = journal.look({"a": SeenState("ready", ""), "b": SeenState("stopped", "")}, 2.0)
    assert (came.tenant, came.before, came.state) == ("b", "absent", "stopped")
    (gone,) = journal.look({"b": SeenState("stopped", "")}, 3.0)
    assert (gone.tenant, gone.before, gone.state) == ("a", "ready", "absent")


def test_a_removal_is_told_and_so_is_its_end_though_the_state_stays() -> None:
    journal = StateJournal({"a": SeenState("draining", "")}, 1.0)
    (goes,) = journal.look({"a": SeenState("draining", "", removed=True)}, 2.0)
    assert (goes.before, goes.state, goes.removed) == ("draining", "draining", True)
    assert journal.look({"a": SeenState("draining", "", removed=True)}, 3.0) == []
    (comes,) = journal.look({"a": SeenState("draining", "")}, 4.0)
    assert (comes.state, comes.removed, journal.since("a")) == ("draining", False, 1.0)


def test_the_last_reason_outlives_its_state() -> None:
    journal = StateJournal({"a": SeenState("failed", "no file")}, 1.0)
    journal.look({"a": SeenState("ready", "")}, 2.0)
    assert journal.reason("a") == "no file"
    journal.look({"a": SeenState("down", "it died")}, 3.0)
    assert journal.reason("a") == "it died"


def told(state: str, revision: int, act: str = "") -> StateChange:
    return StateChange(t=1, tenant="a", before=state, state=state, revision=revision, act=act)


def test_an_act_is_told_with_the_state_of_the_last_look() -> None:
    journal = StateJournal({"a": SeenState("ready", "")}, 1.0)
    line = journal.acted("a", OperatorAct.STOP, 2.0, 7)
    assert (line.before, line.state, line.revision, line.act) == ("ready", "ready", 7, "stop")
    assert journal.look({"a": SeenState("ready", "")}, 3.0) == []


def test_a_wait_ends_with_a_later_act_for_another_state() -> None:
    taken = ActTaken(tenant="a", act=OperatorAct.WAKE, will="", state="sleeping", revision=3)
    own, alike = told("sleeping", 3, "wake"), told("sleeping", 4, "restart")
    earlier, other = told("sleeping", 2, "stop"), told("waking", 5, "stop")
    _until(taken, LifeState.READY, [earlier, own, alike, told("ready", 4)], sleeps=True)
    with pytest.raises(CommandFailed, match="a was told to stop meanwhile"):
        _until(taken, LifeState.READY, [own, alike, other, told("stopped", 5)], sleeps=True)
    settles = ApplyTold(
        applied=True,
        revision=3,
        added=("a",),
        changed=(),
        removed=(),
        roster=(),
        fitting=(),
        awaited={"a": "ready"},
        lines=(),
    )
    with pytest.raises(CommandFailed, match="a was told to stop meanwhile"):
        _until_settled(settles, [alike, other, told("stopped", 5)], sleeps=True)


# -- acts --------------------------------------------------------------------------------


def on(state: LifeState, *, sleeps: bool = True, running: int = 0) -> ActedUpon:
    return ActedUpon("a", state, sleeps, running, ready_s=3.04, drain_s=2.0)


@pytest.mark.parametrize("state", list(LifeState))
@pytest.mark.parametrize("act", list(OperatorAct))
@pytest.mark.parametrize("sleeps", [True, False])
def test_each_act_on_each_state_is_refused_or_foretold(
    act: OperatorAct, state: LifeState, sleeps: bool
) -> None:
    one = on(state, sleeps=sleeps)
    why, will = obstacle(act, one), foretold(act, one)
    assert "\n" not in why + will and will.startswith("a ")
    cannot = act is OperatorAct.SLEEP and not sleeps
    gone = state in (LifeState.STOPPED, LifeState.DOWN, LifeState.FAILED)
    leaves = act in (OperatorAct.SLEEP, OperatorAct.DRAIN)
    assert bool(why) == (cannot or (gone and leaves))


@pytest.mark.parametrize(
    ("act", "one", "words"),
    [
        (OperatorAct.WAKE, on(LifeState.SLEEPING), "a will be ready in about 3.0 s"),
        (OperatorAct.WAKE, on(LifeState.READY), "a is ready already"),
        (OperatorAct.SLEEP, on(LifeState.WAKING), "a sleeps once it is ready; "),
        (
            OperatorAct.STOP,
            on(LifeState.READY, running=3),
            "a stops when its 3 requests have ended, in 2 s at most; ",
        ),
        (
            OperatorAct.STOP,
            on(LifeState.READY, running=1),
            "a stops when its 1 request has ended, in 2 s at most; ",
        ),
        (OperatorAct.STOP, on(LifeState.DRAINING, running=1), "a stops when its 1 request has "),
        (OperatorAct.DRAIN, on(LifeState.READY, sleeps=False), "a stops now; "),
        (OperatorAct.RESTART, on(LifeState.READY), "a stops now, and starts again"),
        (OperatorAct.RESTART, on(LifeState.STOPPED), "a is stopped, and starts as there is room"),
        (OperatorAct.WAKE, on(LifeState.FAILED), "a is failed, and starts as there is room, with"),
        (OperatorAct.RESTART, on(LifeState.DOWN), "a is down, and starts as there is room, with"),
        (OperatorAct.STOP, on(LifeState.DOWN), "a is down, and stays stopped; "),
    ],
)
def test_what_will_happen(act: OperatorAct, one: ActedUpon, words: str) -> None:
    assert foretold(act, one).startswith(words)


def test_a_drain_ends_where_the_policy_can() -> None:
    assert target(OperatorAct.DRAIN, sleeps=True) is LifeState.SLEEPING
    assert target(OperatorAct.DRAIN, sleeps=False) is LifeState.STOPPED


# -- words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_spans_have_one_unit(seconds: float, words: str) -> None:
    assert span(seconds) == words


def status(state: str, *, pinned: bool = False, **changes: object) -> TenantStatus:
    spec = DeclaredTenant(
        share_percent=40,
        aliases=[],
        adapters={"x": "/lora/x"},
        priority=0,
        start="eager",
        keep_alive_s=None,
        stop_after_s=None,
        pinned=pinned,
        max_waiting=1,
        max_wait_s=1,
        keep_weights="host",
    )
    told: dict[str, object] = {
        "reason": "",
        "asleep_bytes": 1,
        "ready_s": 3.0,
        "yields_s": None,
    } | changes
    return TenantStatus(
        name="a",
        spec=spec,
        state=state,
        since=0.0,
        weights="disk",
        device="host:0",
        held_bytes=0,
        share_bytes=1,
        running=0,
        waiting=0,
        adapters=[AdapterStatus(name="x", state="failed", reason="it is bad")],
        restarts=0,
        log="",
        **told,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (status("waking"), "ready in 3 s"),
        (status("starting", ready_s=None), "ready"),
        (status("ready", yields_s=240.0), "sleeps in 4 min"),
        (status("ready", yields_s=240.0, asleep_bytes=None), "stops in 4 min"),
        (status("sleeping", yields_s=5.0), "stops in 5 s"),
        (status("ready", pinned=True), "pinned"),
        (status("ready"), "-"),
        (status("failed", reason="no file"), "no file"),
    ],
)
def test_what_ends_a_state(one: TenantStatus, words: str) -> None:
    assert until(one) == words


def test_an_adapter_is_described_with_the_reason_of_its_failure() -> None:
    lines = described(status("ready"), 0.0).splitlines()
    assert "adapter   x, failed (it is bad), /lora/x" in lines


# -- which server ------------------------------------------------------------------------


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield Path(folder)


def listener(folder: Path, mode: int = 0o700) -> socket.socket:
    folder.mkdir()
    folder.chmod(mode)
    there = socket.socket(socket.AF_UNIX)
    there.bind(str(folder / "admin-8000.sock"))
    there.listen()
    return there


def test_the_only_server_is_meant(base: Path) -> None:
    with closing(listener(base / "mirage-a")):
        path = chosen(None)
        assert path == base / "mirage-a" / "admin-8000.sock" == chosen(path)
        assert listening()[path].pid == os.getpid()


def test_without_one_it_says_where_it_looked(base: Path) -> None:
    listener(base / "mirage-a").close()  # what a killed server leaves
    with pytest.raises(InputRefused, match=f"is found in {base}: start one"):
        chosen(None)


def test_one_that_is_named_has_to_listen(base: Path) -> None:
    with closing(listener(base / "mirage-a")), pytest.raises(InputRefused, match="no server liste"):
        chosen(base / "other")


@contextmanager
def as_another_user() -> Iterator[None]:
    """Context in which this process is no longer root, so that it may not read every file."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_one_in_a_folder_of_another_user_is_one_line(base: Path) -> None:
    with closing(listener(base / "mirage-a")):
        (base / "mirage-a").chmod(0)
        with as_another_user(), pytest.raises(InputRefused, match="belongs to another user: ask"):
            chosen(base / "mirage-a" / "admin-8000.sock")
        (base / "mirage-a").chmod(0o700)


def test_a_folder_that_others_may_enter_is_not_believed(base: Path) -> None:
    with closing(listener(base / "mirage-a", 0o755)), pytest.raises(InputRefused):
        chosen(None)


def test_of_several_each_is_told(base: Path) -> None:
    with (
        closing(listener(base / "mirage-a")),
        closing(listener(base / "mirage-b")),
        pytest.raises(InputRefused, match=r"2 servers .*mirage-a/.*mirage-b/"),
    ):
        chosen(None)


def on_gpu(index: int) -> Config:
    device = {"kind": "cuda", "memory": "1GiB", "index": index}
    tenants = [{"name": "a", "model": "/model", "share": 40}]
    return Config.model_validate({"device": device, "tenants": tenants})


GPUS = "0, GPU-8f3a1b2c-0000\n1, GPU-8f3a9d00-0000\n"


@pytest.mark.parametrize(
    ("named", "gpu"),
    [
        ("0", "GPU-8f3a1b2c-0000"),
        ("01", "GPU-8f3a9d00-0000"),
        ("GPU-8f3a9d00-0000", "GPU-8f3a9d00-0000"),
        ("gpu-8f3a1", "GPU-8f3a1b2c-0000"),
        ("GPU-8f3a", "GPU-8f3a"),  # of two
        ("2", "2"),
        ("MIG-77", "MIG-77"),
    ],
)
def test_a_gpu_is_one_by_whatever_name(named: str, gpu: str) -> None:
    assert identity(named, GPUS) == gpu
    assert identity(named, "") == identity(named, "No devices were found\n") == named


def test_two_names_of_a_gpu_are_one_in_the_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'.'\n{GPUS}.\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with sole_server(on_gpu(0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3a9d00-0000")
        with pytest.raises(ConfigError, match=f"process {os.getpid()} serves on GPU GPU-8f3a9d00"):
            sole_server(on_gpu(0)).__enter__()


def test_a_gpu_has_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "tried-1,tried-2")
    with sole_server(on_gpu(0)):
        with pytest.raises(ConfigError, match=f"process {os.getpid()} serves on GPU tried-1 alre"):
            sole_server(on_gpu(0)).__enter__()
        with sole_server(on_gpu(1)):
            pass
    with sole_server(on_gpu(0)):
        pass


def test_weights_that_come_have_a_line_below_the_tenants() -> None:
    server = DeviceStatus(pid=1, url="", policy="mirage", device="host", device_bytes=1)
    coming = [
        WeightsComing(model="llama", state=AheadState.COMING, here=3 * MIB, missing=12 * MIB),
        WeightsComing(model="qwen", state=AheadState.COMING),
    ]
    told = TenantsTold(form_version=4, revision=0, server=server, tenants=[], coming=coming)
    assert process_table(told, 0.0).splitlines()[1:] == [
        "weights of llama come: 3.0 MiB of 12.0 MiB",
        "weights of qwen come: 0.0 MiB of 0.0 MiB",
    ]
