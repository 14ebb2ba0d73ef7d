"""The ``mirage`` command. The module of a command is imported when the command runs, so that help
is quick.
"""

from mirage.cli.program import main, register_own
from mirage.cli.table import CLUSTER, INSTEAD, OWN_MODULES, SERVING, TOOLS, TOP

__all__ = [
    "CLUSTER",
    "INSTEAD",
    "OWN_MODULES",
    "SERVING",
    "TOOLS",
    "TOP",
    "main",
    "register_own",
]
