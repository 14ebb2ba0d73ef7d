"""Child process: one family of the zoo with compiled steps, at rest and while memory moves.

python compiled_run.py MODELS OUT FAMILY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from identity import Changes
from tiny import POISONING, make_llm, scheduler_of
from zoo_run import outputs

from tests.zoo import FAMILIES, make

SETTINGS = {"base_blocks": 256, "pieces": True, "compiled": True}
COMPILED = {
    "worker_cls": POISONING,
    "enforce_eager": False,
    "compilation_config": {"mode": 3},
    "enable_prefix_caching": False,  # batches of later rounds would be others
}


def main(models: str, out: str, name: str) -> None:
    family = FAMILIES[name]
    path = make(family, Path(models))
    llm = make_llm(path, blocks=512, mirage=SETTINGS, **family.all_arguments(path) | COMPILED)
    scheduler = scheduler_of(llm)
    changes = Changes(scheduler, chance := len(name))
    rounds = [
        outputs(llm, family, path, chance, change)
        for change in (lambda step: None, changes, changes)
    ]
    memory = scheduler.worker.memory
    facts = {
        "rounds": rounds,
        "compiled": memory.compiled,
        "remapped_counts": sorted(changes.remapped_counts),
        "bytes_streamed": memory.streamer.bytes_streamed,
    }
    llm.llm_engine.engine_core.shutdown()
    Path(out).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
