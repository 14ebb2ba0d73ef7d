"""The `mirage` command with fake engines and a fake probe, which do as FAKE_... variables say.

python with_fakes.py WORDS...   as the words of `mirage`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # tests also run this file by its path, out of other programs

from fake_starts import starts  # noqa: E402

from mirage.cli import main  # noqa: E402
from mirage.processes.child import Start, start_program  # noqa: E402
from mirage.serve.admin import server  # noqa: E402
from mirage.serve.launch.programs import Means  # noqa: E402


def means(start: Start) -> Means:
    """`Means` with fake engines and a fake probe, and with short pauses unless a FAKE_... variable
    sets others. `start` starts child processes.
    """
    usual, told = Means(), os.environ
    return Means(
        server=(str(HERE / "fake_engine.py"),),
        probe=(str(HERE / "fake_probe.py"),),
        device_server=(str(HERE / "device_with_fakes.py"),),
        tethered=(str(HERE / "tethered_with_fakes.py"),),
        start=start,
        device={"host": ("-c", told["FAKE_DEVICE"])} if "FAKE_DEVICE" in told else {},
        hello_s=0.5 if told["FAKE_ENGINE"] == "mute" else usual.hello_s,
        progress_s=float(told.get("FAKE_PROGRESS_S", usual.progress_s)),
        grace_s=0.5,
        backoff_s=float(told.get("FAKE_BACKOFF_S", 0.05)),
        rest_s=float(told.get("FAKE_REST_S", usual.rest_s)),
    )


if __name__ == "__main__":
    os.environ.setdefault("FAKE_ENGINE", "")
    server.LOOK_S = float(os.environ.get("FAKE_LOOK_S", server.LOOK_S))
    main(sys.argv[1:], means(starts() if sys.argv[1:2] == ["serve"] else start_program))
