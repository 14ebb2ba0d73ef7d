"""Stands in for `mirage.engine.probe`: answers about `model_folder`'s models without vLLM."""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))

import msgspec
from model_facts import facts_of

from mirage.facts import ModelFacts

if slow := os.environ.get("FAKE_PROBE_S"):
    asked = os.fork()  # vLLM is asked in a child
    time.sleep(float(slow))
    if not asked:
        os._exit(0)
for line in sys.stdin:
    question = json.loads(line)
    said = dict(pairwise(question["argv"]))
    try:
        facts = facts_of(
            Path(said["--model"]),
            said["--dtype"],
            int(said["--max-model-len"]),
            int(said["--block-size"]),
        )
        answer = {"facts": msgspec.to_builtins(facts)}
        msgspec.convert(answer["facts"], ModelFacts)
    except (TypeError, ArithmeticError, msgspec.ValidationError) as error:
        answer = {"refused": f"vLLM refuses it: {error}"}
    print(json.dumps({"tenant": question["tenant"]} | answer))
