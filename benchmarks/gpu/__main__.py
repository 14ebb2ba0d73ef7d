"""``python -m benchmarks.gpu WHAT [--dry]``: see `command`."""

from __future__ import annotations

import sys

from benchmarks.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
