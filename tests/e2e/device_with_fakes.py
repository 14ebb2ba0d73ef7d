"""A device server among several, with fake engines and a fake probe as in `with_fakes`."""

from __future__ import annotations

import os

from fake_starts import starts
from with_fakes import means

from mirage.serve.machine.device_server import main

if __name__ == "__main__":
    os.environ.setdefault("FAKE_ENGINE", "")
    main(means(starts()))
