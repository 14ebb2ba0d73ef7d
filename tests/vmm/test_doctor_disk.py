"""Findings of `mirage doctor` about a disk, with real files and with disks that refuse."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mirage.doctor import disk
from mirage.doctor.finding import Finding, FindingState

pytestmark = pytest.mark.vmm


def found(folder: Path) -> Finding:
    (finding,) = disk.findings(folder)
    assert finding.topic == "disk" and finding.what == str(folder)
    return finding


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, direct: bool) -> None:
    """Let `os.<name>` fail with this error; with `direct` only for opens with O_DIRECT."""
    real = getattr(os, name)

    def fake(target: Any, *values: Any, **more: Any) -> Any:
        asked = values[0] & os.O_DIRECT if name == "open" else True
        if asked or not direct:
            raise OSError(code, os.strerror(code), "file")
        return real(target, *values, **more)

    monkeypatch.setattr(os, name, fake)


def test_a_folder_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    finding = found(tmp_path)
    assert finding.state in (FindingState.WORKS, FindingState.LIMITED)
    speeds = re.findall(r"at ([0-9.]+) GB/s", finding.found)
    assert len(speeds) == 2 and all(float(speed) >= 0 for speed in speeds)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "below"
    assert found(folder).state in (FindingState.WORKS, FindingState.LIMITED)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = found(tmp_path / "file")
    assert (finding.state, finding.advice[:11]) == (FindingState.MISSING, "name a fold")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_one_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse(monkeypatch, "open", code, direct=False)
    finding = found(tmp_path)
    assert finding.state is FindingState.MISSING
    assert finding.found == f"nothing can be stored there: {os.strerror(code)}"
    assert "tiers.ssd.directory" in finding.advice


def test_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "pwritev", errno.ENOSPC, direct=False)
    finding = found(tmp_path)
    assert finding.state is FindingState.MISSING and "the disk is full" in finding.advice
    assert list(tmp_path.iterdir()) == []


def test_one_that_writes_less_than_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda handle, blocks, offset: 4096)
    assert "the disk is full" in found(tmp_path).advice


def test_without_o_direct_it_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "open", errno.EINVAL, direct=True)
    finding = found(tmp_path)
    assert (finding.state, finding.found[:11]) == (FindingState.LIMITED, "no O_DIRECT")
    assert "page cache" in finding.advice
    assert list(tmp_path.iterdir()) == []


def test_one_that_opens_with_o_direct_and_refuses_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = os.pwritev, []

    def first_fails(*values: Any) -> int:
        if not refused:
            refused.append(values)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(*values)

    monkeypatch.setattr(os, "pwritev", first_fails)
    finding = found(tmp_path)
    assert (finding.state, finding.found[:11]) == (FindingState.LIMITED, "no O_DIRECT")
