"""Run a script of this folder in a child process, as vLLM wants one engine per process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def spawn(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run to the end; the caller judges the return code. What vLLM leaves in TMPDIR goes too."""
    with tempfile.TemporaryDirectory(prefix="mirage-test-") as temporary:
        return subprocess.run(
            [sys.executable, str(HERE / script), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            cwd=HERE.parent.parent,
            env={**os.environ, "TMPDIR": temporary},
        )


def must(result: subprocess.CompletedProcess[str]) -> str:
    """Its standard output; fails with its last words if it failed."""
    assert result.returncode == 0, result.stderr[-4000:] or result.stdout[-2000:]
    return result.stdout
