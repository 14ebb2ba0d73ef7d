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


def test_kills_of_the_last_two_looks_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "vmstat"

    def killed(count: int) -> None:
        file.write_text(f"nr_free_pages 7\noom_kill {count}\nnr_dirty 1\n")

    killed(3)
    kills = OomKills(file)
    assert kills.lately() == 0
    killed(4)
    kills.look()  # it came between the kill and the news of it
    assert kills.lately() == 1
    kills.look()
    assert kills.lately() == 0
    file.unlink()
    assert kills.lately() == 0
    assert OomKills(tmp_path / "none").lately() == 0


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
