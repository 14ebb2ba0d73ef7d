"""Messages between the router and the supervisor, over the line of `mirage.wire`.

The router connects, says hello, and is welcomed with all that it needs. What the supervisor pushes
has revisions that grow. The router answers with the last one that it saw, and with what it has
running by then: once it has seen that a tenant is not passed on to any more, its count is final.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.serve.access.forms import AccessTable
from mirage.serve.ends.ending import Ending
from mirage.serve.routed.table import RouterTable
from mirage.wire import Decoder, Message

PROTOCOL_VERSION = 4
LONGEST = 2**26
"""Bytes of a message: a table of many keys."""
MOST_SOCKETS = 253
"""Sockets that come with a hello: Linux passes on no more descriptors at a time."""
LINE = "line"
"""Name of a supervisor's socket to who is behind a door, instead of its path."""
BEAT_S = 0.5
"""Seconds between two signs of life of a router."""


class BlameMemory(msgspec.Struct, frozen=True):
    """A router's memory of requests that ended engines, by `time.monotonic`, for the next one."""

    culprits: dict[str, float] = {}
    """Time until which each fingerprint is refused."""
    suspected: dict[str, float] = {}
    """Time until which each fingerprint is sent alone."""
    strikes: dict[str, list[float]] = {}
    """Times of strikes, by the keys' names."""
    struck: dict[str, float] = {}
    """Time until which each key is refused."""


class RouterHello(Message, frozen=True):
    """First message of a router, with the sockets that it listens on."""

    version: int
    pid: int
    guest: str = ""
    """Machine whose router it is, before devices of several; empty for a device's own."""


class AskAdmission(Message, frozen=True):
    """A request for a tenant that is not passed on at once; `number` is unique on this line."""

    number: int
    tenant: str


class RequestOver(Message, frozen=True):
    """A request that asked is answered, or its client has gone."""

    number: int


class TenantCount(Message, frozen=True):
    """Requests that were passed on to engine number `life` without asking."""

    tenant: str
    life: int
    running: int
    passed: int
    """Number since the router's start, of those that have ended too."""


class TableSeen(Message, frozen=True):
    """Answer to what was pushed, said again whenever a count has changed."""

    revision: int
    counts: list[TenantCount]


class EndJudged(Message, frozen=True):
    """Answer to `EngineEnded`: `words` about the requests, for the log line about the end."""

    tenant: str
    words: str
    bodies: list[str]
    """Fingerprints of requests that may have ended it."""
    memory: BlameMemory


class AnswersAwaited(Message, frozen=True):
    """Numbers of waits for a tenant's engine that have lasted for a beat or longer, all of them."""

    tenant: str
    waits: list[int]


class RequestsEnded(Message, frozen=True):
    """Requests of a tenant that have ended, as rows of `mirage.serve.whatif.past`."""

    tenant: str
    rows: bytes


class Drained(Message, frozen=True):
    """No request runs any more, and new ones are refused."""


class RouterAlive(Message, frozen=True):
    """Sign of life."""


class Beyond(msgspec.Struct, frozen=True):
    """Way of a machine's router to devices of all machines."""

    machine: str
    """Name of its machine."""
    token: str
    """Key that opens doors."""


class RouterWelcome(Message, frozen=True):
    """Answer to a hello: what holds as long as the server runs."""

    http: dict[str, Any]
    """Section `http` of the configuration."""
    host: str
    """Name or address that is listened on."""
    created: int
    """Time at which the server began, in seconds since 1970."""
    hang_s: float
    inner: str
    """Socket at which the supervisor tells of itself, see `mirage.serve.inner`."""
    memory: dict[str, BlameMemory]
    """Lessons of earlier routers, by tenant."""
    lease_s: float = 0.0
    """Seconds for which the router serves on when the supervisor has gone."""
    devices: dict[str, str] = msgspec.field(default_factory=dict)
    """Sockets of servers of several devices, by their names, each with a table of its own."""
    door: str = ""
    """Name of the key that opens this device to routers of other machines; see `router.door`."""
    beyond: Beyond | None = None
    """Way to the devices where each is behind a door."""


class DoorsApply(Message, frozen=True):
    """Devices are behind these doors from now on, by their names; others have none."""

    revision: int
    doors: dict[str, str]
    """Addresses, as ``http://HOST:PORT``."""


class TableApplies(Message, frozen=True):
    """This table applies from now on."""

    revision: int
    table: RouterTable


class KeysApply(Message, frozen=True):
    """These keys apply from now on."""

    revision: int
    keys: AccessTable


class CertificateAgain(Message, frozen=True):
    """The files of the certificate have been written anew."""

    revision: int


class Admitted(Message, frozen=True):
    """A request that asked may be passed on."""

    number: int


class NotAdmitted(Message, frozen=True):
    """A request that asked cannot be in time; see `NotInTime`."""

    number: int
    wait_s: float
    why: str


class EngineEnded(Message, frozen=True):
    """A tenant's engine has ended; `EndJudged` follows."""

    tenant: str
    ending: Ending


class AnswersLost(Message, frozen=True):
    """Requests whose answers never come, by the numbers of their waits."""

    tenant: str
    waits: list[int]


class RouterDrains(Message, frozen=True):
    """Refuse what is new, as the section `http` says; `Drained` follows."""


class RouterEnds(Message, frozen=True):
    """The server ends, and with it the router."""


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
    | CertificateAgain
    | Admitted
    | NotAdmitted
    | EngineEnded
    | AnswersLost
    | RouterDrains
    | RouterEnds
)


def from_router() -> Decoder[FromRouter]:
    """Decoder of the supervisor's end."""
    return Decoder(FromRouter, longest=LONGEST)


def to_router() -> Decoder[ToRouter]:
    """Decoder of the router's end."""
    return Decoder(ToRouter, longest=LONGEST)
