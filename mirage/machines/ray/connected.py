"""Connection of this process to the cluster that its machine belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mirage.errors import CommandFailed
from mirage.machines.ray.node import NodeFolder, NodeRecord


@contextmanager
def connected(folder: NodeFolder) -> Iterator[NodeRecord]:
    """Connect to Ray for the block; yields this machine's node. Raises `CommandFailed` and
    `InputRefused`.
    """
    node = folder.running()
    os.environ.update(folder.environment())  # before Ray reads them, once
    import ray

    try:
        ray.init(
            address=node.address,
            namespace="mirage",
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address=node.host,
        )
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise CommandFailed(f"{node.address}: the cluster does not answer ({line})") from None
    try:
        yield node
    finally:
        ray.shutdown()
