"""Objects that vLLM is given by name, in its server's command line or its configuration."""

from __future__ import annotations

WORKERS = {
    "host": "mirage.engine.cpu_worker.MirageCPUWorker",
    "cuda": "mirage.engine.gpu_worker.MirageGPUWorker",
}
"""``--worker-cls`` by the device's kind: the first to see memory and weights."""
EXECUTOR = "mirage.engine.executor.InProcessExecutor"
"""``--distributed-executor-backend``: worker and scheduler in one process."""
SCHEDULER = "mirage.engine.scheduler.make_scheduler"
"""``--scheduler-cls``."""
CONNECTOR = "mirage.engine.tiers.connector.TierConnector"
"""``kv_connector`` of the KV transfer configuration, in engines with tiers."""
CONNECTOR_SPEC = "mirage.engine.tiers.connector.TierSpec"
"""``spec_name`` in its extra configuration."""


def every() -> dict[str, str]:
    """Class names that we give to vLLM, by the setting that takes them."""
    workers = {f"worker_cls, device.kind {kind}": name for kind, name in WORKERS.items()}
    return workers | {
        "distributed_executor_backend": EXECUTOR,
        "scheduler_cls": SCHEDULER,
        "kv_connector": CONNECTOR,
        "spec_name": CONNECTOR_SPEC,
    }


def parted(name: str) -> tuple[str, str]:
    """Module of a name, and the name in it."""
    module, _, own = name.rpartition(".")
    return module, own
