"""Questions to `mirage.engine.probe`, and its answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tiny import ENVIRONMENT

from mirage.processes.asking import asked_child
from mirage.serve.launch import vllm_facts
from mirage.serve.launch.launcher import flags
from mirage.wire import Broken

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
    """Answers of one probe process to all questions, by tenant."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        with asked_child(vllm_facts.PROBE, log, environment) as child:
            try:
                said = [child.ask(vllm_facts.ROLE, question) for question in questions]
            except Broken:
                raise AssertionError(log.read_text()[-3000:]) from None
    return {answer["tenant"]: answer for answer in said}
