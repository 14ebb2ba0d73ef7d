"""Number of examples that Hypothesis tries: all in ``make long``, a quarter otherwise."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

from tests.commands import CHOICE, scaled


def examples(count: int, **more: Any) -> settings:
    """Settings for `count` examples in ``make long``; how long one takes says nothing."""
    return settings(max_examples=scaled(count, os.environ.get(CHOICE)), deadline=None, **more)
