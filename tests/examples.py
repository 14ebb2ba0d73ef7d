"""Settings of Hypothesis: all examples in ``make long``, about a quarter otherwise."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

from tests.commands import CHOICE, scaled


def examples(count: int, **more: Any) -> settings:
    """Settings for `count` examples in ``make long`` and fewer otherwise, without a time limit for
    each.
    """
    return settings(max_examples=scaled(count, os.environ.get(CHOICE)), deadline=None, **more)
