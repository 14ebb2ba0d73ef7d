"""Ends of processes: of a command that fails, by one line on stderr and an exit code, and of a fork
that is a program of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from mirage.errors import CommandFailed, InputRefused

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: a failure, input that the user can correct, Ctrl-C."""


_leaves_threads = False


def leaves_threads() -> None:
    """Note that threads hang in a library: `exits` then ends the process without the interpreter's
    own shutdown, which would wait for them."""
    global _leaves_threads
    _leaves_threads = True


@contextmanager
def exits(
    interrupted: str = "interrupted",
    failures: tuple[type[Exception], ...] = (CommandFailed, OSError),
) -> Iterator[None]:
    """Context that ends the process with one line on stderr and an exit code.

    It does so for `InputRefused`, for one of `failures`, and for Ctrl-C, whose line is
    `interrupted`. Other exceptions are faults of the program, and pass.
    """
    try:
        with _said_errors(interrupted, failures):
            yield
    except SystemExit as error:
        if not _leaves_threads:
            raise
        sys.stdout.flush()
        os._exit(error.code if isinstance(error.code, int) else 0)


@contextmanager
def _said_errors(interrupted: str, failures: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except InputRefused as error:
        end(f"error: {error}", REFUSED)
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, OSError) and error.filename == sys.executable:
            end(f"error: {_said(error)}: install MIRAGE where this user may run it", REFUSED)
        if isinstance(error, failures):
            end(f"error: {_said(error)}", FAILED)
        if not _is_of_interrupt(error):
            raise
        end(interrupted, INTERRUPTED)


def end(message: str, code: int) -> NoReturn:
    """Print `message` on stderr in one line, unless it is empty, and exit with `code`."""
    if message:
        print(f"mirage: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def end_as_program(body: Callable[[], object]) -> NoReturn:
    """Call `body` in this process, which is a fork, and then end it as Python ends a program. It
    runs exit handlers and flushes its output. Its exit code is 0 if `body` returns, that of a
    `SystemExit`, or 1 after another exception, whose traceback it prints.
    """
    code = 1
    try:
        body()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _is_of_interrupt(error: BaseException | None) -> bool:
    """True for Ctrl-C, also inside an error of a library: pydantic wraps what its callbacks
    raise.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
