"""Stands before `mirage.engine.probe` where a process that has imported vLLM is there already.

python -m mirage.serve.relay SOCKET < QUESTIONS > ANSWERS

Each line goes to that process (`mirage.engine.forkserver`), which answers as the probe would. If
it is gone, the probe itself answers, or says what is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from mirage.processes import forking
from mirage.serve.ask import PROBE


def probe(socket: Path) -> tuple[str, ...]:
    """What to start, as Python's arguments, where `PROBE` is started else."""
    return "-m", __name__, str(socket)


def answered(socket: Path, lines: list[str], log: Path) -> list[str]:
    """A line for each. Raises `OSError` and `ForkEnded` if there is nobody to say it."""
    return [
        json.dumps(forking.ask(socket, "probe", json.loads(line), log)) + "\n" for line in lines
    ]


def main() -> int:
    """Returns the exit code."""
    lines = sys.stdin.readlines()
    with tempfile.NamedTemporaryFile() as log:
        try:
            answers = answered(Path(sys.argv[1]), lines, Path(log.name))
        except (OSError, forking.ForkEnded):
            asked = [sys.executable, *PROBE]
            return subprocess.run(asked, input="".join(lines), text=True, check=False).returncode
    sys.stdout.writelines(answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
