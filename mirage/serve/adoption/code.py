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
    """Hash of the interpreter, the protocol, our modules and the versions of libraries."""
    files = [*installed.modules(), *installed.versions()]
    return _hash([sys.executable, sys.version, PROTOCOL_VERSION, files])


def order_of(command: list[str], environment: Mapping[str, str], model: Path) -> str:
    """Hash of a command line, the variables that matter to engines, and the model's files."""
    files = sorted(installed.stamps(model, "*"))
    return _hash([command, installed.telling(environment), files])


def _hash(told: object) -> str:
    return sha256(json.dumps(told).encode(errors="surrogateescape")).hexdigest()
