"""Runs scripts of this folder in child processes, because vLLM wants one engine per process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import nursery

HERE = Path(__file__).parent
LIMIT_S = 500


def spawn(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a script to its end in a child that has imported vLLM. The caller judges the exit code.
    Files that vLLM leaves in TMPDIR are removed.
    """
    words = [str(arg) for arg in args]
    with (
        tempfile.TemporaryDirectory(prefix="mirage-test-") as temporary,
        tempfile.TemporaryDirectory(prefix="mirage-said-") as said,
    ):
        out, err = Path(said) / "out", Path(said) / "err"
        child = nursery.begin(
            HERE / script, words, out=out, err=err, environment={"TMPDIR": temporary}
        )
        child.join(LIMIT_S)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired([script, *words], LIMIT_S)
        status = child.exitcode
        child.close()
        return subprocess.CompletedProcess([script, *words], status, _text(out), _text(err))


def spawn_anew(
    script: str, *args: object, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Like `spawn`, in a new Python process: for a script whose environment must be set before vLLM
    is imported.
    """
    with tempfile.TemporaryDirectory(prefix="mirage-test-") as temporary:
        return subprocess.run(
            [sys.executable, str(HERE / script), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=nursery.ROOT,
            env={**os.environ, **environment, "TMPDIR": temporary},
        )


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def must(result: subprocess.CompletedProcess[str]) -> str:
    """Standard output of a child; fails with the child's last lines if it failed."""
    assert result.returncode == 0, result.stderr[-4000:] or result.stdout[-2000:]
    return result.stdout
