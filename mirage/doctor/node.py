"""Findings on this machine as a node of a cluster: who could connect to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psutil

from mirage.doctor.finding import Finding, limited, works
from mirage.machines.ray.node import NodeFolder, NodeRecord
from mirage.serve.near import loopback

TOPIC = "cluster"
EVERYWHERE = frozenset({"0.0.0.0", "::"})


def findings(folder: NodeFolder) -> Iterator[Finding]:
    """Findings on the node that runs here; none where there is none."""
    if (node := folder.node()) is None:
        return
    yield works(TOPIC, "node", f"{node.name} at {node.host}, head at {node.address}")
    yield _listening(node)


def _listening(node: NodeRecord) -> Finding:
    """Finding on the ports at which its processes can be reached from other machines."""
    open_at: dict[str, set[int]] = {}
    with suppress(psutil.Error):
        first = psutil.Process(node.process.pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                for one in process.net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN and not loopback(one.laddr.ip):
                        address = "all addresses" if one.laddr.ip in EVERYWHERE else one.laddr.ip
                        open_at.setdefault(address, set()).add(one.laddr.port)
    if not open_at:
        return works(TOPIC, "open ports", "of this machine's processes alone")
    told = "; ".join(
        f"{', '.join(map(str, sorted(ports)))} at {address}" for address, ports in open_at.items()
    )
    advice = (
        "Ray asks for the cluster's token, and encrypts nothing: have a firewall close them to "
    )
    return limited(TOPIC, "open ports", told, f"{advice}all but the private network")
