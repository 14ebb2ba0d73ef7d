"""Test if a request comes from a program on this machine, not from a page in a browser or a proxy.
Pure.

The address of the client does not suffice: a proxy on this machine has it for all its clients, and
a page of any site can send requests to this machine through its visitor's browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

PASSED_ON = {
    "cdn-loop",
    "cf-connecting-ip",
    "fastly-client-ip",
    "forwarded",
    "max-forwards",
    "proxy-connection",
    "true-client-ip",
    "via",
    "x-amzn-trace-id",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-real-ip",
}
"""Headers that proxies add, beside those that begin with one of `BEGINS`."""
BEGINS = ("x-forwarded-", "x-original-", "x-envoy-")
OLD = (1, 0)
"""Version of HTTP that nginx uses by default towards a server, and that no client uses."""
OWN_SITE = {"none", "same-origin"}
"""Values of `Sec-Fetch-Site` for requests by the user, and for those of pages of this server."""
DIRECTLY = "ask 127.0.0.1 directly"


def why_far(
    remote: str | None,
    headers: Mapping[str, str],
    listening: str = "",
    version: tuple[int, int] = (1, 1),
) -> str | None:
    """Reason why a request may not be from a program here, with advice; None if it is.

    `remote` is the client's address, `listening` the host name that the server was told to listen
    on, `version` the version of HTTP.
    """
    if not loopback((remote or "").split("%")[0]):
        return "the request comes from another machine: ask 127.0.0.1"
    for name, value in headers.items():
        known = name.lower()
        if known in PASSED_ON or known.startswith(BEGINS):
            return f"{name} says that a proxy has passed it on: {DIRECTLY}"
        if known == "origin" or (known == "sec-fetch-site" and value.lower() not in OWN_SITE):
            return f"{name} says that a page in a browser has sent it: {DIRECTLY}"
    if version <= OLD:
        return f"HTTP/1.0 says that a proxy has passed it on: {DIRECTLY}, by HTTP/1.1"
    hosts = [value for name, value in headers.items() if name.lower() == "host"]
    if len(hosts) != 1 or not _names_this(hosts[0], listening):
        return f"Host names another server, as after DNS rebinding: {DIRECTLY}"
    return None


def _names_this(host: str, listening: str) -> bool:
    """True if the Host header names this machine or `listening`, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if "@" in host or not name:
        return False
    return name in ("localhost", listening.lower()) or loopback(name)


def loopback(address: str) -> bool:
    """True if the text is a loopback address."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
