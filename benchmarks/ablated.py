"""Server or replay that decides by another rule than the served one.

    .venv/bin/python -m benchmarks.ablated decode_cap=false -- replay configs/slow-link.yaml

The arguments are NAME=VALUE words, ``--``, and the words of `mirage serve`, `check` or `replay`.
Simulations take variants instead: `benchmarks/simulate.py`.
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
"""Commands that may follow ``--``: their processes decide by rules made from a configuration."""
Command = Callable[..., list[str]]


def main(words: list[str]) -> None:
    with exits():
        changes, command = split(words)
        rules = parsed(changes)
    child.serve_command = servers(child.serve_command, [__file__, *changes, "--"])
    with ablated(**rules):
        cli.main(command)


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the command line into the NAME=VALUE words and the words of the command. Raises
    `ConfigError` without ``--``, or with a command that is not in `COMMANDS`.
    """
    if "--" not in words:
        raise ConfigError("write NAME=VALUE words, --, and a command: found no --")
    at = words.index("--")
    changes, command = words[:at], words[at + 1 :]
    if command[:1] == [] or command[0] not in COMMANDS:
        raise ConfigError(f"{' '.join(command[:1])!r}: choose from {', '.join(COMMANDS)}")
    return changes, command


def servers(plain: Command, program: list[str]) -> Command:
    """Function that makes the command lines of a replay's servers: as `plain` does, but started by
    `program` instead of the `mirage` command.
    """

    def serve_command(*arguments: Any) -> list[str]:
        python, _, _, *words = plain(*arguments)
        return [python, *program, *words]

    return serve_command


if __name__ == "__main__":
    main(sys.argv[1:])
