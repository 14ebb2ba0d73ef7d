"""Limit of each tenant's grant now: the free bytes of the ledger, less the room that is kept for
engines that are absent.

The share of a tenant that has not joined, or is lost, is lent to no other, so that its engine
always finds room to start. A tenant counts as absent until its first allotment is sent. If a tenant
was given up, all bytes that it does not hold are free for others, until its engine is awaited
again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from mirage.control.ledger import Ledger, UnknownTenantError
from mirage.protocol import Allotment
from scheduler.tenants import Tenant


class Grants:
    """Issuer of allotments: it numbers those of one device of `device_bytes`, and books them in a
    ledger."""

    def __init__(self, tenants: Iterable[Tenant], device_bytes: int) -> None:
        self.device_bytes = device_bytes
        self.ledger = Ledger(device_bytes)
        self._shares = {t.name: t.share_bytes(device_bytes) for t in tenants}
        self._revisions = dict.fromkeys(self._shares, 0)
        self._present: set[str] = set()
        self._given_up: set[str] = set()
        self._expected: dict[str, int] = {}
        """Bytes that given-up tenants will hold asleep, by name. These are reserved, and not their
        shares."""

    def declares(self, tenant: Tenant) -> None:
        """Add a tenant, or set its share from now on. A new tenant counts as given up."""
        if tenant.name not in self._shares:
            self._revisions[tenant.name] = 0
            self.given_up(tenant.name)
        self._shares[tenant.name] = tenant.share_bytes(self.device_bytes)

    def removed(self, name: str) -> None:
        """Drop a tenant whose engine is gone."""
        del self._shares[name], self._revisions[name]
        self.awaited(name)

    def joined(self, name: str, held_bytes: int) -> None:
        """Note an engine's hello. Raise `UnknownTenantError` if no tenant has this name, and
        another `LedgerError` if the tenant has an engine already or the engine holds more than is
        free."""
        if name not in self._shares:
            raise UnknownTenantError(f"no tenant is named {name!r}: known are {[*self._shares]}")
        if name in self._given_up:
            self.ledger.lost(name)  # the bytes that it held asleep
        self.ledger.joined(name, held_bytes)
        self.awaited(name)

    def adopted(self, name: str, newest: Allotment, held_bytes: int) -> None:
        """Note the hello of an engine that has an allotment of another server.

        If the engine sleeps, its tenant's share may be lent. Raise `UnknownTenantError` if no
        tenant has this name, and another `LedgerError` if the tenant has an engine already, or less
        is free than this one holds or was granted.
        """
        if name not in self._shares:
            raise UnknownTenantError(f"no tenant is named {name!r}: known are {[*self._shares]}")
        self.ledger.adopted(name, newest, held_bytes)
        self._revisions[name] = newest.revision
        if newest.asleep:
            self.given_up(name)
        else:
            self.awaited(name)
            self._present.add(name)

    def lost(self, name: str) -> None:
        """Note that an engine is gone: its memory is free. Its share is reserved again, unless the
        tenant was given up, as a sleeping one is. No error if it had not joined."""
        self.ledger.lost(name)
        self._present.discard(name)

    def slept(self, name: str, held_bytes: int) -> None:
        """Note that a tenant holds only `held_bytes`; its share may be lent until it joins or is
        awaited."""
        self.lost(name)
        self._expected.pop(name, None)
        self.ledger.joined(name, held_bytes)
        self.given_up(name)

    def sleeps(self, name: str, target: Allotment) -> Allotment:
        """Number `target` and return it, the allotment that puts a joined tenant to sleep. From now
        on other tenants may use its share.

        The bytes that the tenant holds stay reserved until it reports that it holds less.
        """
        allotment = self.allot(name, target)
        self._present.discard(name)
        self.given_up(name)
        return allotment

    def expects(self, name: str, nbytes: int) -> None:
        """Reserve `nbytes` that a given-up tenant will hold asleep."""
        self._expected[name] = nbytes

    def given_up(self, name: str) -> None:
        """Note that no engine of the tenant will start for now: its share may be lent."""
        self._given_up.add(name)

    def awaited(self, name: str) -> None:
        """Note that the tenant's engine is to start again: its share is reserved from now on."""
        self._given_up.discard(name)
        self._expected.pop(name, None)

    def allot(self, name: str, target: Allotment) -> Allotment:
        """Number `target`, book it and return it, to be sent. Raise `OverCommitError` if its grant
        and the bytes reserved for other tenants exceed the device together."""
        revision = self._revisions[name] + 1
        allotment = replace(target, revision=revision)
        self.ledger.offer(name, allotment)
        self._revisions[name] = revision
        self._present.add(name)
        return allotment

    def limit(self, name: str) -> int:
        """Return the largest grant that can be sent to a tenant now, in bytes."""
        kept = sum(max(0, share - held) for share, held in self._absent(but=name))
        kept += sum(self._awaited_asleep(other) for other in self._expected if other != name)
        return self.ledger.reserved_bytes(name) + max(0, self.ledger.free_bytes - kept)

    def kept_bytes(self) -> int:
        """Return the bytes that no plan may give to others: the shares of absent tenants, and what
        tenants that were given up hold or are expected to hold asleep."""
        asleep = [self.ledger.reserved_bytes(name) for name in self._given_up]
        awaited = [self._awaited_asleep(name) for name in self._expected]
        return sum([*asleep, *awaited, *[max(share, held) for share, held in self._absent()]])

    def has_room(self, name: str, nbytes: int | None = None) -> bool:
        """True if an engine that holds up to `nbytes` (None: its tenant's share) may be started.

        Room that is reserved for other absent engines does not count, because they may start as
        well.
        """
        return self.limit(name) >= (self._shares[name] if nbytes is None else nbytes)

    def borrowed(self) -> dict[str, int]:
        """Return the bytes that tenants hold, or may come to hold, beyond their shares, by name."""
        over = {n: self.ledger.reserved_bytes(n) - share for n, share in self._shares.items()}
        return {name: nbytes for name, nbytes in over.items() if nbytes > 0}

    def _awaited_asleep(self, name: str) -> int:
        """Return the bytes that the tenant is expected to hold asleep and does not hold yet."""
        return max(0, self._expected[name] - self.ledger.reserved_bytes(name))

    def _absent(self, but: str = "") -> list[tuple[int, int]]:
        """Return the (share, reserved) bytes of each absent tenant but `but`."""
        return [
            (share, self.ledger.reserved_bytes(name))
            for name, share in self._shares.items()
            if name not in self._present and name not in self._given_up and name != but
        ]
