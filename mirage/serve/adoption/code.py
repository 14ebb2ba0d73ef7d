"""Hashes by which an engine that runs is compared with one that would be started now."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from mirage import installed
from mirage.protocol import PROTOCOL_VERSION


def code_of_engines() -> str:
    """Hash of the Python interpreter, the protocol's version, and the path, size and modification
    time of our modules and of the files with the libraries' versions.
    """
    files = [*installed.modules(), *installed.versions()]
    return _hash([sys.executable, sys.version, PROTOCOL_VERSION, files])


def order_of(command: list[str], environment: Mapping[str, str], model: Path) -> str:
    """Hash of a command line, of the variables that affect how an engine computes, and of the path,
    size and modification time of each of the model's files.
    """
    files = sorted(installed.stamps(model, "*"))
    return _hash([command, installed.telling(environment), files])


def _hash(told: object) -> str:
    return sha256(json.dumps(told).encode(errors="surrogateescape")).hexdigest()
