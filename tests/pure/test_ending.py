"""Ends of engines: those that count as evidence against the requests that ran, and the words about
them.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mirage.serve.ends.ending import FROM_OUTSIDE, Ending, Evidence, failed_step
from mirage.serve.engines.oom import OomKills

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("ending", "evidence", "words"),
    [
        (Ending(status=-9), "nothing", "engine core was ended from outside (SIGKILL)"),
        (Ending(status=-15), "nothing", "engine core was ended from outside (SIGTERM)"),
        (Ending(status=0), "nothing", "engine core ended with exit code 0"),
        (Ending(status=-11), "fault", "engine core ended by SIGSEGV"),
        (Ending("API server", 1), "fault", "API server ended with exit code 1"),
        (Ending(status=-62), "fault", "engine core ended by signal 62"),
        (Ending(error="ValueError"), "fault", "engine core ended with ValueError"),
        (
            Ending(error="DeviceLost", fault="CUDA_ERROR_ILLEGAL_ADDRESS"),
            "fault",
            "engine core ended with DeviceLost (CUDA_ERROR_ILLEGAL_ADDRESS)",
        ),
        (
            Ending(error="DeviceLost", fault="CUDA_ERROR_NO_DEVICE", device="GPU 0 has failed"),
            "nothing",
            "engine core ended: GPU 0 has failed",
        ),
        (Ending(status=-9, error="ValueError"), "fault", "engine core ended with ValueError"),
        (Ending(), "nothing", "engine core ended (exit status unknown)"),
        (
            Ending("engine", -9, hang="no step for 31 s with 2 requests"),
            "hang",
            "engine hung (no step for 31 s with 2 requests) and was ended",
        ),
        (
            Ending("engine", unreachable="its socket is gone"),
            "nothing",
            "engine could not be reached (its socket is gone) and was ended",
        ),
        (
            Ending(refused="a second hello"),
            "nothing",
            "engine core broke the control protocol (a second hello)",
        ),
        (
            Ending(status=-9, oom_kills=1),
            "nothing",
            "engine core was killed by the kernel's OOM killer (SIGKILL): memory ran out on this "
            "machine",
        ),
        (Ending(status=-11, oom_kills=1), "fault", "engine core ended by SIGSEGV"),
    ],
)
def test_evidence_and_words(ending: Ending, evidence: str, words: str) -> None:
    assert ending.evidence is Evidence(evidence)
    assert str(ending) == words


def test_an_end_is_unknown_if_neither_a_status_nor_a_reason_is_told() -> None:
    assert Ending().unknown
    assert not Ending(status=0).unknown and not Ending(error="ValueError").unknown
    assert not Ending(hang="no step").unknown and not Ending(stopped=True).unknown


def test_every_signal_is_evidence_or_comes_from_outside() -> None:
    for number in signal.valid_signals():
        outside = Ending(status=-number).evidence is Evidence.NOTHING
        assert outside == (number in FROM_OUTSIDE)


class KernelFiles:
    """Folder that stands for /proc, and control groups below another one."""

    def __init__(self, folder: Path, version: int) -> None:
        self.proc, self.groups = folder / "proc", folder / "groups"
        self.version = version
        kind, options = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,memory")
        mount = f"30 20 0:26 / {self.groups} rw shared:9 - {kind} cgroup {options}\n"
        self._write(self.proc / "self" / "mountinfo", mount)
        self.kills(0)

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def kills(self, machine: int, **groups: int) -> None:
        """Kills on the machine, and in control groups by their names."""
        self._write(self.proc / "vmstat", f"nr_free_pages 7\noom_kill {machine}\nnr_dirty 1\n")
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for group, count in groups.items():
            self._write(self.groups / group / name, f"oom 9\noom_kill {count}\n")

    def moves(self, pid: int, group: str) -> None:
        line = f"0::/{group}" if self.version == 2 else f"0::/\n4:memory:/{group}"
        self._write(self.proc / str(pid) / "cgroup", f"{line}\n")


def test_kills_of_the_last_two_looks_are_counted(tmp_path: Path) -> None:
    kernel = KernelFiles(tmp_path, 2)
    kernel.kills(3)
    kills = OomKills(kernel.proc)
    assert kills.lately() == 0
    kernel.kills(4)
    kills.look()  # it came between the kill and the news of it
    assert kills.lately() == 1
    kills.look()
    assert kills.lately() == 0
    (kernel.proc / "vmstat").unlink()
    assert kills.lately() == 0
    assert OomKills(tmp_path / "none").lately() == 0


@pytest.mark.parametrize("version", [1, 2])
def test_kills_in_other_control_groups_are_not_counted(tmp_path: Path, version: int) -> None:
    kernel = KernelFiles(tmp_path, version)
    kernel.kills(3, a=1, b=1)
    kernel.moves(7, "a")
    kills = OomKills(kernel.proc)
    kills.follow(7)
    kernel.kills(4, a=1, b=2)
    assert kills.lately() == 0, "another one's"
    kernel.kills(5, a=2, b=2)
    assert kills.lately() == 1
    kernel.moves(7, "b")
    kills.look()
    kills.look()
    kernel.kills(6, a=2, b=3)
    assert kills.lately() == 1, "where it is now"


def test_the_machine_s_kills_count_where_a_group_does_not_tell(tmp_path: Path) -> None:
    kernel = KernelFiles(tmp_path, 2)
    kernel.moves(7, "untold")
    kills = OomKills(kernel.proc)
    kills.follow(7)
    kills.follow(8)  # it has ended
    kernel.kills(1)
    assert kills.lately() == 1


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(status=1, error="RuntimeError"), "RuntimeError: expected BFloat16"),
        (Ending(status=-9, error="RuntimeError"), "RuntimeError: expected BFloat16"),
        (Ending(status=-11), "its engine core ended by SIGSEGV"),
        (Ending(status=1), "RuntimeError: expected BFloat16"),
    ],
)
def test_a_first_step_that_fails_is_told_with_the_exception_or_the_signal(
    ending: Ending, words: str
) -> None:
    assert failed_step(ending, "RuntimeError: expected BFloat16") == (
        f"the first step of the model failed: {words}; try another dtype, or other engine_args"
    )


def test_an_exception_that_no_log_tells_is_named_by_its_class() -> None:
    assert "its engine core ended with KeyError; " in failed_step(Ending(error="KeyError"), None)
    assert "its engine core ended with exit code 3; " in failed_step(Ending(status=3), None)


@pytest.mark.parametrize("status", [0, -9, -15, None])
def test_an_engine_that_was_ended_has_not_failed_in_its_first_step(status: int | None) -> None:
    assert failed_step(Ending(status=status), "RuntimeError: of its server") == ""
