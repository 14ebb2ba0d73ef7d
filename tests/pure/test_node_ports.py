"""Addresses and ports of a node: to whom they are open, and the rule that closes ports. Its
releases.
"""

from __future__ import annotations

import pytest

from mirage.doctor.finding import FindingState
from mirage.doctor.node import of_node, of_releases
from mirage.doctor.ports import judged
from mirage.errors import InputRefused
from mirage.machines.ray.commands import _check_host
from mirage.machines.ray.node import NodeRecord
from mirage.machines.releases import releases
from mirage.processes.marks import ProcessMark
from mirage.weights.secret import is_private

pytestmark = pytest.mark.pure

FREE = (32768, 60999)
HERE = ("127.0.0.1", "::1", "10.0.0.1", "fe80::1%eth0")


def test_ports_at_the_private_address_alone_need_nothing() -> None:
    found = judged("cluster", {"10.0.0.1": {40001, 40000}}, HERE, "10.0.0.1", FREE)
    assert found.state is FindingState.WORKS and found.found == "40000, 40001 at 10.0.0.1"
    assert judged("cluster", {}, HERE, "10.0.0.1", FREE).found == "none"


def test_ports_at_all_addresses_are_no_more_where_there_is_one() -> None:
    found = judged("cluster", {"::": {6390, 40002}}, HERE, "10.0.0.1", FREE)
    assert found.state is FindingState.WORKS
    told = "6390, 40002 at all addresses: 10.0.0.1 is the only one beside the loopback address"
    assert found.found == told


def test_a_machine_with_another_address_is_told_a_rule() -> None:
    addresses = (*HERE, "192.0.2.1")
    found = judged("cluster", {"::": {6390, 40002}, "10.0.0.1": {40001}}, addresses, HERE[2], FREE)
    assert found.state is FindingState.LIMITED
    told = "6390, 40002 at all addresses; 40001 at 10.0.0.1, so at 192.0.2.1 too"
    assert found.found == told
    rule = "-I INPUT -p tcp --syn ! -i lo -m multiport --dports 6390,32768:60999"
    both = f"`iptables {rule} ! -d 10.0.0.1 -j DROP && ip6tables {rule} -j DROP`"
    assert found.advice.endswith(both), found.advice


def test_a_private_address_of_ipv6_stays_open() -> None:
    found = judged("cluster", {"::": {40002}}, ("fd00::1", "192.0.2.1"), "fd00::1", FREE)
    rule = "-I INPUT -p tcp --syn ! -i lo -m multiport --dports 32768:60999"
    both = f"`iptables {rule} -j DROP && ip6tables {rule} ! -d fd00::1 -j DROP`"
    assert found.advice.endswith(both), found.advice


def test_releases_that_differ_are_told_by_machine() -> None:
    one, other = {"mirage": "0.1.0", "vllm": "0.32.0"}, {"mirage": "0.1.0", "vllm": "0.33.0"}
    same = of_releases({"m1": one, "m2": dict(one)})
    assert same.state is FindingState.WORKS
    assert same.found == "m1, m2: mirage 0.1.0 vllm 0.32.0"
    differ = of_releases({"m2": other, "m1": one})
    assert differ.state is FindingState.LIMITED
    assert differ.found == "m1: mirage 0.1.0 vllm 0.32.0; m2: mirage 0.1.0 vllm 0.33.0"
    assert releases().keys() == {"mirage", "vllm"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "224.0.0.1"])
def test_an_address_that_the_internet_reaches_is_refused(host: str) -> None:
    """The kernel lets a process bind these addresses on any machine."""
    with pytest.raises(InputRefused, match=f"^--host {host}: machines talk without TLS: write a "):
        _check_host(host)


def test_public_addresses_are_told_apart() -> None:
    assert all(map(is_private, ["127.0.0.1", "10.0.0.1", "fd00::1", "::1", "::ffff:10.0.0.1"]))
    assert not any(map(is_private, ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"]))


def test_an_address_of_this_machine_is_taken() -> None:
    _check_host("127.0.0.1")
    for host in ("192.168.255.254", "m1"):
        with pytest.raises(InputRefused, match="no address of this machine"):
            _check_host(host)


def test_a_node_at_a_public_address_is_told() -> None:
    mark = ProcessMark(1, 0)
    found = of_node(NodeRecord("m1", mark, "10.0.0.1:6390", "10.0.0.1"))
    assert found.state is FindingState.WORKS and not found.advice
    found = of_node(NodeRecord("m1", mark, "8.8.8.8:6390", "8.8.8.8"))
    assert found.state is FindingState.LIMITED and "--host" in found.advice
    assert found.found.endswith("the Internet may reach 8.8.8.8")
