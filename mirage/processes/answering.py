"""A child process that is asked one question: JSON on its standard input, JSON on its output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def answer(make: Callable[[Any], Any]) -> None:
    """Answer the question on the standard input. What libraries print goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write(json.dumps(make(json.load(sys.stdin)), allow_nan=False))
    answers.flush()
