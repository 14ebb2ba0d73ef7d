"""Connection of this process to the cluster that its machine belongs to."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mirage.errors import CommandFailed
from mirage.machines.ray import threads
from mirage.machines.ray.node import NodeFolder, NodeRecord
from mirage.processes.exits import leaves_threads

CONNECT_S, SHUT_S = 30.0, 2.0
"""Longest time to connect to a cluster, and to leave one, in seconds: its head may be away."""


@contextmanager
def connected(folder: NodeFolder) -> Iterator[NodeRecord]:
    """Connect to Ray for the block; yields this machine's node. Raises `CommandFailed` if no node
    runs here or the cluster does not answer, and `InputRefused` without a secret.
    """
    node = folder.running()
    os.environ.update(folder.environment())  # before Ray reads them, once
    import ray

    atexit.unregister(ray.shutdown)  # it waits for a head that is away

    def connect() -> None:
        ray.init(
            address=node.address,
            namespace="mirage",
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address=node.host,
        )

    try:
        threads.begun(connect).result(CONNECT_S)
    except KeyboardInterrupt:
        leaves_threads()
        raise
    except TimeoutError:
        leaves_threads()
        raise CommandFailed(
            f"{node.address}: the cluster does not answer within {CONNECT_S:g} s"
        ) from None
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise CommandFailed(f"{node.address}: the cluster does not answer ({line})") from None
    try:
        yield node
    finally:
        try:
            threads.begun(ray.shutdown).result(SHUT_S)
        except TimeoutError:
            leaves_threads()
