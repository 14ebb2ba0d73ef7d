"""Questions to `mirage.engine.probe`, and its answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny import ENVIRONMENT

from mirage.serve.launcher import flags

ROOT = Path(__file__).parents[2]
ARGUMENTS = {
    "dtype": "bfloat16",
    "block_size": 32,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "enforce_eager": True,
    "distributed_executor_backend": "mirage.engine.executor.InProcessExecutor",
}


def question(name: str, model: Path, **more: Any) -> dict[str, Any]:
    arguments = ARGUMENTS | {"model": str(model)} | more
    return {"tenant": name, "elastic": True, "argv": flags(arguments)}


def answers(questions: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One process for all of them."""
    asked = subprocess.run(
        [sys.executable, "-m", "mirage.engine.probe"],
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
    )
    said = [json.loads(line) for line in asked.stdout.splitlines()]
    assert len(said) == len(questions), asked.stderr[-3000:]
    return {answer["tenant"]: answer for answer in said}
