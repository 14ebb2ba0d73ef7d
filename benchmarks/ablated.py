"""A server, or a replay and its servers, that decide by another rule than the one that serves.

    .venv/bin/python -m benchmarks.ablated decode_cap=false -- replay configs/slow-link.yaml

NAME=VALUE words, ``--``, and the words of `mirage serve`, `check` or `replay`. Simulations take
variants instead: `benchmarks/simulate.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:  # started as a file, by a replay in any folder
    sys.path.insert(0, ROOT)

from benchmarks.ablations import ablated, parsed  # noqa: E402
from mirage import cli  # noqa: E402
from mirage.config import ConfigError  # noqa: E402
from mirage.processes.exits import exits  # noqa: E402
from mirage.tools.replay import child  # noqa: E402

COMMANDS = ("serve", "check", "replay")
"""Commands whose processes decide by rules of their own configuration."""
Command = Callable[..., list[str]]


def main(words: list[str]) -> None:
    with exits():
        changes, command = split(words)
        rules = parsed(changes)
    child.serve_command = servers(child.serve_command, [__file__, *changes, "--"])
    with ablated(**rules):
        cli.main(command)


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """The NAME=VALUE words, and those of the command. Raises `ConfigError`."""
    if "--" not in words:
        raise ConfigError("write NAME=VALUE words, --, and a command: found no --")
    at = words.index("--")
    changes, command = words[:at], words[at + 1 :]
    if command[:1] == [] or command[0] not in COMMANDS:
        raise ConfigError(f"{' '.join(command[:1])!r}: choose from {', '.join(COMMANDS)}")
    return changes, command


def servers(plain: Command, program: list[str]) -> Command:
    """A replay's command lines of servers, started by `program` instead of the `mirage` command."""

    def serve_command(*arguments: Any) -> list[str]:
        python, _, _, *words = plain(*arguments)
        return [python, *program, *words]

    return serve_command


if __name__ == "__main__":
    main(sys.argv[1:])
