"""Objects that vLLM is given by name, in its server's command line or its configuration."""

from __future__ import annotations

WORKERS = {
    "host": "mirage.engine.cpu_worker.MirageCPUWorker",
    "cuda": "mirage.engine.gpu_worker.MirageGPUWorker",
}
"""Worker class for ``--worker-cls`` by the device's kind: it is the first to see memory and
weights."""
EXECUTOR = "mirage.engine.executor.InProcessExecutor"
"""Executor for ``--distributed-executor-backend``: worker and scheduler are in one process."""
SCHEDULER = "mirage.engine.scheduler.make_scheduler"
"""Function for ``--scheduler-cls`` that makes the scheduler."""
CONNECTOR = "mirage.engine.tiers.connector.TierConnector"
"""Connector for ``kv_connector`` of the KV transfer configuration, in engines with tiers."""
CONNECTOR_SPEC = "mirage.engine.tiers.connector.TierSpec"
"""Class for ``spec_name`` in the connector's extra configuration."""


def every() -> dict[str, str]:
    """Return the names that we give to vLLM, by the setting that takes them."""
    workers = {f"worker_cls, device.kind {kind}": name for kind, name in WORKERS.items()}
    return workers | {
        "distributed_executor_backend": EXECUTOR,
        "scheduler_cls": SCHEDULER,
        "kv_connector": CONNECTOR,
        "spec_name": CONNECTOR_SPEC,
    }


def parted(name: str) -> tuple[str, str]:
    """Return the module of a dotted name, and the name in it."""
    module, _, own = name.rpartition(".")
    return module, own
