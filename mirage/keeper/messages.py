"""Messages of the server, the engines and the keeper of weights. The form is that of `mirage.wire`.

An engine keeps its connection, which is for one master, as long as the engine lives.
"""

from __future__ import annotations

from pathlib import Path

from mirage.wire import Message


def keeper_beside(control_socket: Path) -> Path:
    """Path of the keeper's socket, in the folder of `control_socket`."""
    return control_socket.with_name("keeper.sock")


class AskMaster(Message, frozen=True):
    """Engine to keeper, the first message: asks for the master of these weights, for a tenant.

    An engine that has the master from an earlier keeper sends its file descriptor along.
    """

    tenant: str
    identity: str
    nbytes: int
    """Size of the master in bytes, about."""


class MasterFilled(Message, frozen=True):
    """Engine to keeper: the master is complete, and the engine has no writable mapping of it."""


class MasterUnfit(Message, frozen=True):
    """Engine to keeper: these weights cannot be kept, or the master is one of other weights."""

    why: str


class MasterHere(Message, frozen=True):
    """Keeper to engine: the master, whose file descriptor comes along."""


class FillMaster(Message, frozen=True):
    """Keeper to engine: no master exists for these weights. An empty file comes along, to fill."""


class MasterSealed(Message, frozen=True):
    """Keeper to engine: the master is kept, and is sealed against writing."""


class NoMaster(Message, frozen=True):
    """Keeper to engine: there is no master for this engine, which therefore reads its checkpoint
    itself.
    """

    why: str


class KeeperReady(Message, frozen=True):
    """Keeper to server: engines may ask."""


class MastersTold(Message, frozen=True):
    """Keeper to server: the number of masters that exist now, in use or not, and their bytes in
    total."""

    tenants: list[str]
    """Tenants for which a complete master is kept."""
    masters: int
    used_bytes: int
    """Bytes of masters that engines use, or fill."""
    idle_bytes: int


class ListenAgain(Message, frozen=True):
    """Server to keeper: listen at a new socket, because the file of the old one was removed."""


class KeepFor(Message, frozen=True):
    """Server to keeper: the only tenants for which masters without an engine are kept.

    The masters of other tenants are kept as long as their engines live.
    """

    tenants: list[str]


class KeeperLease(Message, frozen=True):
    """Server to keeper: the time for which the keeper goes on if the server is killed."""

    seconds: float
    """Seconds, to which the keeper adds `LEASE_MARGIN_S`; 0: the keeper ends with the server."""


class EndKeeper(Message, frozen=True):
    """Server to keeper, the last message: end immediately, whatever the lease."""


class NewServer(Message, frozen=True):
    """New server to the keeper of a server that has gone, on a connection like an engine's.

    From then on the keeper serves the new server. It answers with `KeeperReady`.
    """


class ForgetTenant(Message, frozen=True):
    """Server to keeper: no engine of this tenant will ask for its weights again."""

    tenant: str


FromAsking = AskMaster | MasterFilled | MasterUnfit | NewServer
ToAsking = MasterHere | FillMaster | MasterSealed | NoMaster
FromKeeper = KeeperReady | MastersTold
ToKeeper = ListenAgain | KeepFor | ForgetTenant | KeeperLease | EndKeeper
