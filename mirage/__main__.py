"""``python -m mirage``, and the command ``mirage``."""

from __future__ import annotations

from mirage.errors import CommandFailed
from mirage.processes.exits import exits
from mirage.processes.printed import printed


def run() -> None:
    """Run the command line. `mirage.cli` is imported inside `exits`, because the import takes most
    of a second, in which Ctrl-C may come.
    """
    with exits(interrupted="", failures=(CommandFailed,)), printed():
        from mirage.cli import main

        main()


if __name__ == "__main__":
    run()
