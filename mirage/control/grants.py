"""Limits of grants now: the ledger, and room for engines that are absent.

The share of a tenant that has not joined, or is lost, is lent to nobody, so that its engine always
finds room to start. It counts as absent until its first allotment is sent. Of a tenant that was
given up, all that it does not hold is free for others, until its engine is awaited again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from mirage.control.ledger import Ledger, UnknownTenantError
from mirage.protocol import Allotment
from scheduler.tenants import Tenant


class Grants:
    """Numbers and books the allotments of one device of `device_bytes`."""

    def __init__(self, tenants: Iterable[Tenant], device_bytes: int) -> None:
        self.device_bytes = device_bytes
        self.ledger = Ledger(device_bytes)
        self._shares = {t.name: t.share_bytes(device_bytes) for t in tenants}
        self._revisions = dict.fromkeys(self._shares, 0)
        self._present: set[str] = set()
        self._given_up: set[str] = set()
        self._expected: dict[str, int] = {}
        """Bytes that tenants which were given up will hold, though not their shares."""

    def declares(self, tenant: Tenant) -> None:
        """A tenant is there, with this share from now on. A new one is not awaited."""
        if tenant.name not in self._shares:
            self._revisions[tenant.name] = 0
            self.given_up(tenant.name)
        self._shares[tenant.name] = tenant.share_bytes(self.device_bytes)

    def removed(self, name: str) -> None:
        """Drop a tenant whose engine is gone."""
        del self._shares[name], self._revisions[name]
        self.awaited(name)

    def joined(self, name: str, held_bytes: int) -> None:
        """Raises `UnknownTenantError`, and `LedgerError` as the ledger does."""
        if name not in self._shares:
            raise UnknownTenantError(f"no tenant is named {name!r}: known are {[*self._shares]}")
        if name in self._given_up:
            self.ledger.lost(name)  # what it held asleep
        self.ledger.joined(name, held_bytes)
        self.awaited(name)

    def adopted(self, name: str, newest: Allotment, held_bytes: int) -> None:
        """An engine comes with what another server has allotted to it. Raises as `joined` does.

        The share of one that sleeps may be lent.
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
        """Its memory is free, and its share kept again. No error if it had not joined."""
        self.ledger.lost(name)
        self._present.discard(name)

    def slept(self, name: str, held_bytes: int) -> None:
        """A tenant holds only `held_bytes`; its share may be lent until it joins again."""
        self.lost(name)
        self._expected.pop(name, None)
        self.ledger.joined(name, held_bytes)
        self.given_up(name)

    def sleeps(self, name: str, target: Allotment) -> Allotment:
        """`target` with a number, to be sent to one that joined; its share may be lent from now on.

        What it holds counts until it reports less.
        """
        allotment = self.allot(name, target)
        self._present.discard(name)
        self.given_up(name)
        return allotment

    def expects(self, name: str, nbytes: int) -> None:
        """Keep `nbytes` that a tenant will hold asleep, after `given_up`."""
        self._expected[name] = nbytes

    def given_up(self, name: str) -> None:
        """No engine of it will start for now: its share may be lent out."""
        self._given_up.add(name)

    def awaited(self, name: str) -> None:
        """Its engine is to start again: its share is kept from now on."""
        self._given_up.discard(name)
        self._expected.pop(name, None)

    def allot(self, name: str, target: Allotment) -> Allotment:
        """`target` with a number, to be sent. Raises `OverCommitError` if it exceeds the device."""
        revision = self._revisions[name] + 1
        allotment = replace(target, revision=revision)
        self.ledger.offer(name, allotment)
        self._revisions[name] = revision
        self._present.add(name)
        return allotment

    def limit(self, name: str) -> int:
        """The largest grant that can be sent to a tenant now, in bytes."""
        kept = sum(max(0, share - held) for share, held in self._absent(but=name))
        kept += sum(self._awaited_asleep(other) for other in self._expected if other != name)
        return self.ledger.reserved_bytes(name) + max(0, self.ledger.free_bytes - kept)

    def kept_bytes(self) -> int:
        """Bytes of absent tenants, that no plan may give to others."""
        asleep = [self.ledger.reserved_bytes(name) for name in self._given_up]
        awaited = [self._awaited_asleep(name) for name in self._expected]
        return sum([*asleep, *awaited, *[max(share, held) for share, held in self._absent()]])

    def has_room(self, name: str, nbytes: int | None = None) -> bool:
        """True if an engine that holds up to `nbytes`, its tenant's share if None, may be started.

        Room that is kept for other absent engines does not count: they may start as well.
        """
        return self.limit(name) >= (self._shares[name] if nbytes is None else nbytes)

    def borrowed(self) -> dict[str, int]:
        """Bytes that tenants hold, or may come to hold, beyond their shares; by name."""
        over = {n: self.ledger.reserved_bytes(n) - share for n, share in self._shares.items()}
        return {name: nbytes for name, nbytes in over.items() if nbytes > 0}

    def _awaited_asleep(self, name: str) -> int:
        """Bytes that are expected of it and that it does not hold yet."""
        return max(0, self._expected[name] - self.ledger.reserved_bytes(name))

    def _absent(self, but: str = "") -> list[tuple[int, int]]:
        """(share, reserved) bytes of each absent tenant."""
        return [
            (share, self.ledger.reserved_bytes(name))
            for name, share in self._shares.items()
            if name not in self._present and name not in self._given_up and name != but
        ]
