"""Child process: memory is recalled between vLLM's schedule() and the step itself.

python tier_between.py MODELS STEPS_IN_FLIGHT

vLLM gives blocks the hashes of their future content before the step has computed it. A copy to the
tier that is made then has other content. The second run fails if that copy is used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tiered import Tiered

EXTENTS, FEW = 40, 3
TOKENS = 8


def called_back_once(engine: Tiered) -> None:
    """Recall memory once, right after a prompt was scheduled, as the agent's thread may do."""
    scheduler = engine.scheduler
    schedule = scheduler.schedule

    def scheduled(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            scheduler.schedule = schedule
            engine.allot(FEW)
        return output

    scheduler.schedule = scheduled


def main(models: str, steps_in_flight: str) -> None:
    asynchronous = int(steps_in_flight) > 1
    engine = Tiered(Path(models), blocks=EXTENTS, arguments={"async_scheduling": asynchronous})
    batch = engine.prompts(2, 120, seed=5)
    called_back_once(engine)
    first = engine.run(batch, TOKENS, lambda step: engine.allot(EXTENTS) if step == 2 else None)
    engine.sleep_and_wake(EXTENTS)
    again = engine.run(batch, TOKENS)
    print(json.dumps({"first": first, "again": again}))


if __name__ == "__main__":
    main(*sys.argv[1:])
