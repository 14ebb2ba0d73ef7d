"""What every command does with what it cannot run."""

import subprocess


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command ends with."""
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("mirage: error: ")
