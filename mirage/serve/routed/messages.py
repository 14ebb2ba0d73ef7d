"""Messages between the router and the supervisor, over a connection of `mirage.wire`, the *line*.

The router connects and says hello; the answer, a `RouterWelcome`, has the facts that it needs
first. Tables, keys and doors from the supervisor have revisions that grow. The router answers with
the last revision that it has seen, and with its counts of running requests: once it has seen that
requests to a tenant have to ask, that tenant's count no longer grows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.serve.access.forms import AccessTable
from mirage.serve.ends.ending import Ending
from mirage.serve.routed.table import RouterTable
from mirage.wire import Decoder, Message

PROTOCOL_VERSION = 6
LONGEST = 2**26
"""Most bytes of a message, such as a table of many keys."""
MOST_SOCKETS = 253
"""Most sockets that can come with a hello: Linux passes no more descriptors at a time."""
LINE = "line"
"""Word for the supervisor's socket in a request to a device's door, instead of the socket's path.
"""
BEAT_S = 0.5
"""Seconds between two signs of life of a router."""


class BlameMemory(msgspec.Struct, frozen=True):
    """Verdicts of a router on requests and keys that ended the engine of one tenant. The supervisor
    passes them on to the next router, which would otherwise admit these requests again.

    Times are by `time.monotonic`. Requests are named by the digests of their bodies.
    """

    culprits: dict[str, float] = {}
    """Time until which a request is refused, by the digest of its body."""
    suspected: dict[str, float] = {}
    """Time until which a request runs alone, by the digest of its body."""
    strikes: dict[str, list[float]] = {}
    """Times at which requests of each key ended the engine, by the key's name."""
    struck: dict[str, float] = {}
    """Time until which each key is refused, by its name."""


class RouterHello(Message, frozen=True):
    """First message of a router; its listening sockets come along as descriptors."""

    version: int
    pid: int
    guest: str = ""
    """Name of the machine whose router it is; empty for the device's own."""


class AskAdmission(Message, frozen=True):
    """Question of the router whether a request may be passed on to a tenant that is not `at_once`
    in the table.

    `number` names the request in the answer; it is unique on this connection.
    """

    number: int
    tenant: str


class RequestOver(Message, frozen=True):
    """A request that had asked for admission has ended."""

    number: int


class TenantCount(Message, frozen=True):
    """Counts of requests to the tenant's engine with the number `life` that the supervisor does not
    know: the router passed them on without asking, or the supervisor that admitted them has gone.
    """

    tenant: str
    life: int
    running: int
    passed: int
    """Number of such requests since the router's start, to earlier engines too, ended ones
    included.
    """


class TableSeen(Message, frozen=True):
    """Newest revision that the router has seen; sent again when a count has changed.

    `counts` has only those that have changed.
    """

    revision: int
    counts: list[TenantCount]


class EndJudged(Message, frozen=True):
    """Answer to `EngineEnded`: `words` about the requests, for the log line about the end."""

    tenant: str
    words: str
    bodies: list[str]
    """Digests of the bodies of requests that may have ended the engine."""
    memory: BlameMemory


class AnswersAwaited(Message, frozen=True):
    """The router's report of all its waits for answers of a tenant's engine that have lasted at
    least `BEAT_S`, as the numbers that the router gave them. Each wait is one request's, for the
    next part of its answer.
    """

    tenant: str
    waits: list[int]


class RequestsEnded(Message, frozen=True):
    """Requests of a tenant that have ended, as rows of `mirage.serve.whatif.past`."""

    tenant: str
    rows: bytes


class Drained(Message, frozen=True):
    """Answer of a router to `RouterDrains`: it refuses new requests, and the last request that it
    had has ended."""


class RouterAlive(Message, frozen=True):
    """Sign of life of a router."""


class Beyond(msgspec.Struct, frozen=True):
    """Credentials of a machine's router for the devices of all machines, a part of `RouterWelcome`.
    The devices' addresses come with `DoorsApply`."""

    machine: str
    """Name of the router's machine."""
    token: str
    """Token of the cluster's key, with which devices let the router in."""


class RouterWelcome(Message, frozen=True):
    """Answer of the supervisor to a router's hello: facts about the server at that time."""

    http: dict[str, Any]
    """Section `http` of the configuration."""
    host: str
    """Host name or address that the server listens on."""
    created: int
    """Time at which the server began, in seconds since 1970."""
    hang_s: float
    inner: str
    """Path of the supervisor's own HTTP socket, see `mirage.serve.routing.inner`."""
    memory: dict[str, BlameMemory]
    """Evidence of earlier routers about requests that ended engines, by tenant."""
    lease_s: float = 0.0
    """Seconds for which the router goes on serving after the supervisor has gone."""
    devices: dict[str, str] = msgspec.field(default_factory=dict)
    """Paths of the sockets of several devices' servers, by device; empty if there is only one."""
    door: str = ""
    """Name of the key that opens this device's door to routers of other machines; see
    `router.door`.
    """
    beyond: Beyond | None = None
    """Access to the devices of all machines, for a router of one machine; None for a device's own
    router.
    """


class DoorsApply(Message, frozen=True):
    """Addresses from now on at which the devices of all machines are reached (their doors); devices
    that are missing here have none.
    """

    revision: int
    doors: dict[str, str]
    """URLs of the form ``http://HOST:PORT``, by the devices' names."""


class TableApplies(Message, frozen=True):
    """Table that is in use from now on."""

    revision: int
    table: RouterTable
    now: float
    """Time by `time.monotonic` of the sender. Times in the table are by that clock, and a router on
    another machine has another one.
    """


class KeysApply(Message, frozen=True):
    """Keys that are in use from now on."""

    revision: int
    keys: AccessTable


class HttpApplies(Message, frozen=True):
    """Limits of clients that are in use from now on."""

    revision: int
    http: dict[str, Any]
    """Section `http` of the configuration."""


class CertificateAgain(Message, frozen=True):
    """Order to read the files of the certificate again."""

    revision: int


class Admitted(Message, frozen=True):
    """Answer to `AskAdmission`: the request with this number may be passed on."""

    number: int


class NotAdmitted(Message, frozen=True):
    """Answer to `AskAdmission`: the request with this number is refused; see `NotInTime`."""

    number: int
    wait_s: float
    why: str


class EngineEnded(Message, frozen=True):
    """A tenant's engine has ended; the router answers with `EndJudged`."""

    tenant: str
    ending: Ending


class AnswersLost(Message, frozen=True):
    """Order to end requests to a tenant, because their answers will never come. `waits` has the
    numbers of their waits, as in `AnswersAwaited`.
    """

    tenant: str
    waits: list[int]


class RouterDrains(Message, frozen=True):
    """Order to refuse new requests, and to break off running ones that do not finish in time.
    Section `http` has the times.

    The router answers with `Drained`.
    """


class RouterEnds(Message, frozen=True):
    """Message that the server ends: the router that it has started ends too, any other router only
    forgets the server's device.
    """


FromRouter = (
    RouterHello
    | AskAdmission
    | RequestOver
    | TableSeen
    | EndJudged
    | AnswersAwaited
    | RequestsEnded
    | Drained
    | RouterAlive
)
ToRouter = (
    RouterWelcome
    | DoorsApply
    | TableApplies
    | KeysApply
    | HttpApplies
    | CertificateAgain
    | Admitted
    | NotAdmitted
    | EngineEnded
    | AnswersLost
    | RouterDrains
    | RouterEnds
)


def from_router() -> Decoder[FromRouter]:
    """Decoder of messages from a router."""
    return Decoder(FromRouter, longest=LONGEST)


def to_router() -> Decoder[ToRouter]:
    """Decoder of messages to a router."""
    return Decoder(ToRouter, longest=LONGEST)
