"""``python -m benchmarks.gpu smoke|test|bench|serve|serve-graphs [--dry]``: see `command`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from benchmarks.gpu.command import main
    except ImportError as missing:
        print(f"no GPU to measure: {missing}: torch and cuda-python are needed", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
