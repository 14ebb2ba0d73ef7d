"""Child process: start an engine whose layers move, without the checks that would refuse it.

Prints why it does not start, or that it did and the number of layers that move.

python forced.py MODELS FAMILY
"""

from __future__ import annotations

import sys
from pathlib import Path

from tiny import make_llm, make_model, scheduler_of

from mirage.engine import stack
from mirage.engine.proof import UnsupportedModel

if __name__ == "__main__":
    models, family = sys.argv[1:]
    stack.why_stays = lambda layers, model: None
    stack.MatrixSizes.emptied = lambda self: None  # type: ignore[method-assign]
    try:
        llm = make_llm(make_model(family, Path(models)), mirage={})
    except UnsupportedModel as error:
        print(error)
    else:
        print("started", scheduler_of(llm).shape.movable_layers)
