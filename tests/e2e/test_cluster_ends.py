"""A controller ends on a signal although the head of its cluster does not answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from loopback import HEAD, PORT
from operated import ROSTER
from supervised import write_config
from test_cluster_command import OneMachine
from test_cluster_command import pytestmark as pytestmark
from test_cluster_command import root_folder as root_folder
from tethered import until

ENDS_S = 30.0
"""Seconds in which the controller ends, although Ray waits for a silent head without end."""


def gcs_of(root: Path) -> psutil.Process:
    """The head's GCS process, Ray's store of the cluster's tables."""
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.name() == "gcs_server" and str(root) in " ".join(one.cmdline()):
                return one
    raise AssertionError("no head runs")


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def connects(pid: int) -> bool:
    """True if the process `pid` has a TCP connection, open or being opened, to Ray on the cluster's
    head."""
    with suppress(psutil.Error):
        return any(one.raddr and one.raddr.port == PORT for one in net(pid))
    return False


def net(pid: int) -> list[Any]:
    return psutil.Process(pid).net_connections("tcp")


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_controller_ends_on_a_signal_while_its_head_is_frozen(
    number: signal.Signals, root: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, "a")
    tenant = {"name": "a", "device": "left", "model": "model", "max_model_len": 128, "share": 40}
    told = {
        "devices": [{"name": "left", "machine": "m1", "memory": "4MiB"}],
        "dtype": "float32",
        "tenants": [tenant],
        "roster": ROSTER,
    }
    config.write_text(yaml.safe_dump(told))
    machine = OneMachine(root, "m1", HEAD)
    start = ("node", "start", "--name", "m1", "--host", HEAD, "--port", str(PORT))
    serve = ("serve", str(config), "--cluster", "--port", "0")
    with machine.runs(*start) as (_, lines):
        until(lambda: "m1: runs\n" in lines, "the head runs")
        gcs = gcs_of(root)
        with machine.runs(*serve) as (process, said):
            until(lambda: any("serves at" in line for line in said), "it serves")
            with frozen(gcs):
                # it has asked the head once a second
                until(lambda: any("nothing is placed" in line for line in said), "it is noticed")
                process.send_signal(number)
                assert process.wait(ENDS_S) == (130 if number is signal.SIGINT else 0)
            assert any("the controller ends" in line for line in said)
        with frozen(gcs), machine.runs(*serve) as (process, said):
            until(lambda: connects(process.pid), "it connects")
            process.send_signal(number)
            assert process.wait(ENDS_S) in {130, -number}
        until(lambda: machine.mirage("node", "leave").returncode == 0, "it leaves", 120)
