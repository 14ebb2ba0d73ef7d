"""A tethered server of one device with fake engines and a fake probe, as `with_fakes` has."""

from __future__ import annotations

import os

from with_fakes import means

from mirage.serve.machine.tethered import main

if __name__ == "__main__":
    os.environ.setdefault("FAKE_ENGINE", "")
    main(means())
