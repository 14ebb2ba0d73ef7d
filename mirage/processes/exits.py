"""Failures of a command: one line on stderr, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from mirage.errors import CommandFailed, InputRefused

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: what went wrong, what the user can correct, Ctrl-C."""


@contextmanager
def exits(
    interrupted: str = "interrupted",
    failures: tuple[type[Exception], ...] = (CommandFailed, OSError),
) -> Iterator[None]:
    """`InputRefused`, one of `failures` or Ctrl-C in the block ends the process, with one line.

    `interrupted` is said on Ctrl-C. Other errors are faults of the program, and pass.
    """
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
    """Say it on stderr, in one line, and exit; nothing is said if there is no message."""
    if message:
        print(f"mirage: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _is_of_interrupt(error: BaseException | None) -> bool:
    """Ctrl-C itself, or what a library made of it: pydantic wraps what its callbacks raise."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
