"""Findings on this machine as a node of a cluster: its secret, its ports, the cluster's head and
the other machines."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.error import HTTPError

from mirage.doctor import ports
from mirage.doctor.finding import Finding, limited, missing, works
from mirage.errors import CommandFailed, InputRefused
from mirage.machines.ray.connected import connected
from mirage.machines.ray.node import NodeFolder, NodeRecord
from mirage.machines.seam import MachineAway
from mirage.weights.secret import is_private

TOPIC = "cluster"
REACHED_S = 3.0
"""Seconds to wait for an answer of another machine."""
APART_S = 3.0
"""Seconds by which clocks may differ; the date of an HTTP answer has whole seconds."""


def findings(folder: NodeFolder) -> Iterator[Finding]:
    """Findings on the node that runs on this machine; none if no node runs. They end early if the
    secret cannot be read or the head does not answer."""
    if (node := folder.node()) is None:
        return
    yield of_node(node)
    yield (secret := of_secret(folder))
    yield ports.of_node(TOPIC, node)
    yield (head := _of_head(node))
    if secret.advice or head.advice:
        return
    with Path(os.devnull).open("w") as nobody, redirect_stdout(nobody):
        found = _of_others(folder)
    yield from found


def of_node(node: NodeRecord) -> Finding:
    """Finding on the addresses of this machine and of the head."""
    found = f"{node.name} at {node.host}, head at {node.address}"
    if is_private(node.host):
        return works(TOPIC, "node", found)
    advice = "join with a private address as --host: machines talk without TLS"
    return limited(TOPIC, "node", f"{found}: the Internet may reach {node.host}", advice)


def of_secret(folder: NodeFolder) -> Finding:
    """Finding on the file of the cluster's secret."""
    try:
        folder.secret()
    except InputRefused:
        path, words = folder.secret_file, "cannot be read, or by others too"
        return missing(
            TOPIC, "secret", f"{path} {words}", f"chown it to this user, chmod 600 {path}"
        )
    return works(TOPIC, "secret", "its file is this user's alone")


def _of_head(node: NodeRecord) -> Finding:
    """Finding on the connection of this machine to its cluster's head, whose address `node` has."""
    host, _, port = node.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_S).close()
    except OSError as error:
        advice = "start the head, and let a firewall pass what comes from the private network"
        return missing(TOPIC, "head", f"{node.address} does not answer ({error})", advice)
    return works(TOPIC, "head", f"{node.address} is reached")


def _of_others(folder: NodeFolder) -> list[Finding]:
    """Findings on the cluster's machines and devices. To connect takes half a minute at most, and
    each device that does not answer takes some seconds more."""
    try:
        with connected(folder):
            installed, urls = asyncio.run(_asked())
    except (CommandFailed, MachineAway) as error:
        return [missing(TOPIC, "machines", str(error), "see ray.log in the node's folder")]
    return [of_releases(installed), *(_of_device(*one) for one in urls.items())]


async def _asked() -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Releases of each machine, and the address of each device's server, empty if it does not
    answer. Raises `MachineAway` if the cluster does not answer.
    """
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    machines = RayMachines(0)
    urls = {}
    for device in await machines.devices():
        try:
            told = await machines.told(device)
        except MachineAway:
            told = None
        urls[device] = "" if told is None else told.url
    return await machines.releases(), urls


def of_releases(installed: dict[str, dict[str, str]]) -> Finding:
    """Finding on the releases on all machines: they should be equal."""
    names = ", ".join(sorted(installed))
    told = {
        machine: " ".join(f"{k} {v}" for k, v in at.items()) for machine, at in installed.items()
    }
    if len(set(told.values())) == 1:
        return works(TOPIC, "machines", f"{names}: {next(iter(told.values()))}")
    differ = "; ".join(f"{machine}: {what}" for machine, what in sorted(told.items()))
    return limited(TOPIC, "machines", differ, "install the same releases on all of them")


def _of_device(device: str, url: str) -> Finding:
    """Finding on the connection to a device's server, and on its clock."""
    what = f"device {device}"
    if not url:
        advice = "see server.log in the device's folder of its machine"
        return limited(TOPIC, what, "no server answers its agent", advice)
    try:
        with urllib.request.urlopen(f"{url}/live", timeout=REACHED_S) as answer:
            date = answer.headers["Date"]
    except HTTPError as error:
        date = error.headers["Date"]
    except OSError as error:
        advice = "have its machine's firewall pass what comes from the private network"
        return missing(TOPIC, what, f"{url} does not answer ({error})", advice)
    apart_s = 0.0 if date is None else parsedate_to_datetime(date).timestamp() - time.time()
    if abs(apart_s) < APART_S:
        return works(TOPIC, what, f"{url} is reached; the clocks agree")
    words = (
        f"{url} is reached; its clock is {abs(apart_s):.0f} s {'ahead' if apart_s > 0 else 'late'}"
    )
    return limited(
        TOPIC, what, words, "have NTP set both: keys end by the clock, logs are read by it"
    )
