"""Refusal by a command: one line on stderr, exit code 2, and nothing on stdout."""

import subprocess


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The single line with which a command ends, without its beginning "mirage: error: "."""
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("mirage: error: ")
