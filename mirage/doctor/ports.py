"""Ports at which other machines can reach a node's processes, and a firewall rule that closes them.

Ray 2.60 listens on all addresses: its servers can only listen on all of them, or on the loopback
address.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from mirage.doctor.finding import Finding, limited, works
from mirage.machines.ray.node import NodeRecord
from mirage.serve.http.local_request import loopback

EVERYWHERE = frozenset({"0.0.0.0", "::"})
MAPPED = "::ffff:"
"""Prefix of an IPv4 address as an IPv6 socket reports it."""
FREE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""File with the smallest and the largest port that Linux assigns by itself."""
WHAT = "open ports"


def of_node(topic: str, node: NodeRecord) -> Finding:
    """Finding on the ports of the node that runs on this machine."""
    addresses = {
        one.address
        for card in psutil.net_if_addrs().values()
        for one in card
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }
    try:
        low, high = map(int, FREE.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    return judged(topic, _listening(node), addresses, node.host, (low, high))


def judged(
    topic: str,
    listening: Mapping[str, Collection[int]],
    addresses: Collection[str],
    private: str,
    free: tuple[int, int],
) -> Finding:
    """Finding on ports that processes are `listening` on, given by address. Pure.

    The machine has `addresses`, of which `private` is the one that others should use. `free` are
    the smallest and the largest port that Linux assigns by itself.
    """
    everywhere = sorted({p for at in EVERYWHERE for p in listening.get(at, ())})
    others = {at: sorted(ports) for at, ports in listening.items() if at not in EVERYWHERE}
    said = [f"{', '.join(map(str, ports))} at {at}" for at, ports in sorted(others.items())]
    known = [one.partition("%")[0] for one in addresses]
    reached = sorted(
        {at for at in known if at != private and not loopback(at) and not at.startswith("fe80:")}
    )
    if not everywhere:
        return works(topic, WHAT, "; ".join(said) or "none")
    told = "; ".join([f"{', '.join(map(str, everywhere))} at all addresses", *said])
    if not reached:
        return works(topic, WHAT, f"{told}: {private} is the only one beside the loopback address")
    named = [str(port) for port in everywhere if not free[0] <= port <= free[1]]
    closed = ",".join([*named, f"{free[0]}:{free[1]}"])
    rule = f"-I INPUT -p tcp --syn ! -i lo -m multiport --dports {closed}"
    return limited(
        topic,
        WHAT,
        f"{told}, so at {', '.join(reached)} too",
        "Ray asks for the cluster's token and encrypts nothing. Close them but at the private "
        f"address, as root, unless a firewall does: `{_at(private, rule)}`",
    )


def _at(private: str, rule: str) -> str:
    """Commands that drop connections to all addresses but the private one."""
    but, drop = f" ! -d {private}", " -j DROP"
    four, six = ("", but) if ":" in private else (but, "")
    return f"iptables {rule}{four}{drop} && ip6tables {rule}{six}{drop}"


def _listening(node: NodeRecord) -> dict[str, set[int]]:
    """Ports on which the node's processes listen, by address, without loopback addresses."""
    found: dict[str, set[int]] = {}
    with suppress(psutil.Error):
        first = psutil.Process(node.process.pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                for one in process.net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN and not loopback(one.laddr.ip):
                        at = one.laddr.ip.removeprefix(MAPPED)
                        found.setdefault(at, set()).add(one.laddr.port)
    return found
