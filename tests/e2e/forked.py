"""Our commands in forks of a process that has imported them, called like `subprocess.run` and
`subprocess.Popen`.

To import a command takes a third of a second of computing, and to import a server more than a
second, which is most of what these take themselves. Tests of an import itself (its time, Ctrl-C
during it, what it must not import), of an interpreter's end, and of the environment with which a
process began, start a process of their own instead.
"""

from __future__ import annotations

import atexit
import fcntl
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import setproctitle

IMPORTED = (
    "setproctitle",
    "mirage.cli.serving",
    "mirage.serve.supervisor",
    "mirage.serve.admin.commands",
    "mirage.serve.commands.check",
    "mirage.serve.machine.declared",
    "mirage.serve.machine.server",
    "mirage.serve.proposal.proposed",
    "mirage.serve.commands.stop",
    "mirage.serve.commands.weights",
    "mirage.weights.gathering",
    "mirage.tools.explain.command",
)
"""Modules that the process imports first."""
ASIDE = 512
"""A number beyond those of the files that a test passes."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(IMPORTED))


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python with `words` (a file, or ``-m`` and a module, then arguments) in a fork; return
    its output and exit status.

    Raises `subprocess.TimeoutExpired` after `timeout` seconds, and kills the process.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        folder = str(Path.cwd() if cwd is None else cwd)
        files = {1: Passed(out.fileno()), 2: Passed(err.fileno())}
        child = _CONTEXT.Process(target=become, args=(list(words), dict(env), folder, files))
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(list(words), timeout)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
        return subprocess.CompletedProcess(list(words), child.exitcode, *said)


class Begun(subprocess.Popen[str]):
    """`subprocess.Popen` for a command of Python: instead of a program, a fork runs the module or
    file that the command names, with its arguments. The fork is a child of the fork server, which
    tells when it has ended.
    """

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *given: Any) -> None:
        """Replacement of the method with which `Popen` starts a program."""
        _, passed, folder, environment, _, _, _, *handles = given[:13]
        ends = dict(zip((0, 1, 2), (handles[place] for place in (0, 3, 5)), strict=True))
        files = {number: Passed(file) for number, file in ends.items() if file != -1}
        files |= {number: Passed(number) for number in passed}
        given_words = list(map(str, args[1:])), dict(environment), str(folder), files
        self._child = _CONTEXT.Process(target=become, args=given_words)
        self._child.start()
        assert self._child.pid is not None
        self.pid = self._child.pid
        self._child_created = True
        self._close_pipe_fds(*handles)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        """Replacement of the method that asks for the end of a child."""
        if self.returncode is None:
            self.returncode = self._child.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        """Replacement of the method that waits for the end of a child."""
        self._child.join(timeout)
        if self._internal_poll() is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


class Passed:
    """An open file that a fork receives as another number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.number),)


def _received(file: Any) -> Passed:
    return Passed(file.detach())


def become(
    words: list[str], environment: dict[str, str], folder: str, files: dict[int, Passed]
) -> None:
    """In the forked child, do what Python would do with `words`, and end as it would. `files` are
    its open files by number, and the null device is its standard input without one.
    """
    setproctitle.getproctitle()  # finds its room beside the environment as it was
    _open(files)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # of the process, until it ends
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    title = " ".join([sys.executable, *words])
    setproctitle.setproctitle(title.encode(errors="backslashreplace").decode())
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


def _open(files: dict[int, Passed]) -> None:
    """Give the open files their numbers, which others of them may have now."""
    null = os.open(os.devnull, os.O_RDWR)
    sources = {0: null} | {number: file.number for number, file in files.items()}
    aside = {number: fcntl.fcntl(file, fcntl.F_DUPFD, ASIDE) for number, file in sources.items()}
    for file in set(sources.values()):
        os.close(file)
    for number, file in aside.items():
        os.dup2(file, number)
        os.close(file)
