"""``python -m benchmarks.gpu WHAT [--dry]``: see `command`; ``prepare FOLDER``: see `prepare`."""

from __future__ import annotations

import sys

from benchmarks.gpu import command

if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["prepare"]:  # needs a package that rows do not
        from benchmarks.gpu import prepare

        sys.exit(prepare.main(words[1:]))
    sys.exit(command.main())
