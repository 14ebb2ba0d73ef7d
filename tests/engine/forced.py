"""Child process: start an engine whose layers move, whatever speaks against it; say what it says.

python forced.py MODELS FAMILY
"""

from __future__ import annotations

import sys
from pathlib import Path

from tiny import make_llm, make_model

from mirage.engine import stack
from mirage.engine.proof import UnsupportedModel

if __name__ == "__main__":
    models, family = sys.argv[1:]
    stack.why_stays = lambda layers, model: None
    stack.Sizes.taken = lambda self: None  # type: ignore[method-assign]
    try:
        make_llm(make_model(family, Path(models)), mirage={})
    except UnsupportedModel as error:
        print(error)
    else:
        print("started")
