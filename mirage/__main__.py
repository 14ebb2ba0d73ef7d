"""``python -m mirage``, and the command ``mirage``."""

from __future__ import annotations

from mirage.processes.exits import exits


def run() -> None:
    """One command. Importing them takes most of a second, in which Ctrl-C may come already."""
    with exits(interrupted="", failures=()):
        from mirage.cli import main
    main()


if __name__ == "__main__":
    run()
