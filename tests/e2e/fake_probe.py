"""Stand-in for `mirage.engine.probe`: facts of `model_folder`'s models without vLLM."""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))

import msgspec
from model_facts import facts_of

from mirage.facts import ModelFacts
from mirage.processes.answering import answer


def probe(question: dict[str, Any]) -> dict[str, Any]:
    """Answer a question as the real probe would: facts, or a refusal."""
    said = dict(pairwise(question["argv"]))
    try:
        facts = facts_of(
            Path(said["--model"]),
            said["--dtype"],
            int(said["--max-model-len"]),
            int(said["--block-size"]),
        )
        found = {"facts": msgspec.to_builtins(facts)}
        msgspec.convert(found["facts"], ModelFacts)
    except (TypeError, ArithmeticError, msgspec.ValidationError) as error:
        found = {"refused": f"vLLM refuses it: {error}"}
    return {"tenant": question["tenant"]} | found


if slow := os.environ.get("FAKE_PROBE_S"):
    asked = os.fork()  # vLLM is asked in a child
    time.sleep(float(slow))
    if not asked:
        os._exit(0)
answer({"probe": probe})
