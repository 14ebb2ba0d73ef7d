"""Imports of a GPU's engine change nothing in torch, checked in a process that
imports only them.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.rare]

LOOK = """
import json, sys
import torch
import vllm.utils.torch_utils  # remembers the current stream, on every device
before = {name: id(getattr(torch.cuda, name)) for name in dir(torch.cuda)}
others = {
    "torch.Event": torch.Event,
    "torch.accelerator.synchronize": torch.accelerator.synchronize,
    "torch.accelerator.empty_cache": torch.accelerator.empty_cache,
    "torch.accelerator.get_memory_info": torch.accelerator.get_memory_info,
    "torch.Tensor.pin_memory": torch.Tensor.pin_memory,
    "torch.Tensor.record_stream": torch.Tensor.record_stream,
}
import %s
after = {name: id(getattr(torch.cuda, name)) for name in before}
changed = [f"torch.cuda.{name}" for name in before if before[name] != after[name]]
changed += [name for name, was in others.items() if eval(name) is not was]
from vllm.v1.worker.gpu import buffer_utils
from mirage.doctor.engine import replaced_in_torch
print(json.dumps({
    "changed": changed,
    "replaced": replaced_in_torch(),
    "host only": [name for name in sys.modules if name.startswith("vllm.v1.worker.cpu")],
    "uva": buffer_utils.UvaBuffer.__module__,
}))
"""


def imported(module: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK % module], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("module", ["mirage.engine.gpu_worker", "mirage.engine.scheduler"])
def test_a_gpus_engine_finds_torchs_own_streams_and_events(module: str) -> None:
    assert imported(module) == {
        "changed": [],
        "replaced": [],
        "host only": [],
        "uva": "vllm.v1.worker.gpu.buffer_utils",
    }


def test_the_hosts_worker_would_be_seen() -> None:
    found = imported("mirage.engine.cpu_worker")
    assert {"torch.cuda.Event", "torch.Event", "torch.accelerator.synchronize"} <= {
        *found["changed"]  # type: ignore[misc]
    }
    assert "Event" in found["replaced"]  # type: ignore[operator]
    assert "vllm.v1.worker.cpu.shm" in found["host only"]  # type: ignore[operator]
