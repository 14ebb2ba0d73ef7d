"""Ledger of the grants of all tenants: their sum never exceeds the device.

The ledger counts for each tenant the most that it can possibly hold. An engine that has seen
revision r holds at most max(held bytes it reported, grant of r); an allotment that is on its way
may be seen at any moment. So a tenant's reserved bytes are the maximum of its reported holding, the
grant it has seen, and all newer grants sent. A lowered grant frees nothing until the engine reports
that it has complied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage.protocol import Allotment


class LedgerError(RuntimeError):
    """Error: the accounts do not allow the call."""


class OverCommitError(LedgerError):
    """Error: more bytes are needed than the device has free."""


class UnknownTenantError(LedgerError):
    """Error: there is no tenant of this name, or it has not joined."""


class AlreadyJoinedError(LedgerError):
    """Error: a tenant joined twice without being lost in between."""


class BadRevisionError(LedgerError):
    """Error: an allotment's revision is not newer than the last one sent, or an engine reports one
    that was never sent or is older than one that it has seen."""


class BrokenPromiseError(LedgerError):
    """Error: an engine reports more bytes than its last report, the grant it has seen and newer
    grants allow."""


@dataclass(slots=True)
class Account:
    held_bytes: int
    seen: int = 0
    newest: int = 0
    grants: dict[int, int] = field(default_factory=dict)
    """Grant bytes by revision: the revision that the engine has seen, and all newer ones."""
    reserved: int = 0

    def settle(self) -> None:
        """Set `reserved` from the other fields; call it after each change of them."""
        self.reserved = max(self.held_bytes, *self.grants.values(), 0)


class Ledger:
    """Accounts of the tenants of one device of `device_bytes` bytes."""

    def __init__(self, device_bytes: int) -> None:
        self.device_bytes = device_bytes
        self._accounts: dict[str, Account] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that no tenant holds or may come to hold by the allotments sent so far."""
        return self.device_bytes - sum([a.reserved for a in self._accounts.values()])

    def reserved_bytes(self, name: str) -> int:
        """Return the most bytes that a tenant can hold now; 0 if it has not joined."""
        return self._accounts[name].reserved if name in self._accounts else 0

    def joined(self, name: str, held_bytes: int) -> None:
        """Open an account. Raise `AlreadyJoinedError` if the tenant has one, and `OverCommitError`
        if less than `held_bytes` is free."""
        if name in self._accounts:
            raise AlreadyJoinedError(f"tenant {name!r} has joined already: report it lost first")
        self._demand(name, held_bytes, self.free_bytes)
        self._accounts[name] = Account(held_bytes, reserved=max(0, held_bytes))

    def adopted(self, name: str, newest: Allotment, held_bytes: int) -> None:
        """Open an account for an engine that another ledger had; `newest` is the newest allotment
        that it has seen.

        Its grant stays granted, held or not. Raise `AlreadyJoinedError` if the tenant has an
        account, and `OverCommitError` if less is free than it holds or was granted.
        """
        self.joined(name, max(held_bytes, newest.grant_bytes))
        account = self._accounts[name]
        account.held_bytes = held_bytes
        account.seen = account.newest = newest.revision
        account.grants[newest.revision] = newest.grant_bytes

    def offer(self, name: str, allotment: Allotment) -> None:
        """Book an allotment that is about to be sent.

        Raise `OverCommitError` if the device could be over-committed by it, and `BadRevisionError`
        unless its revision is newer than every one sent before.
        """
        account = self._account(name)
        if allotment.revision <= account.newest:
            raise BadRevisionError(
                f"revision {allotment.revision} for tenant {name!r} is not newer than "
                f"{account.newest}: revisions must grow"
            )
        self._demand(name, allotment.grant_bytes, self.free_bytes + account.reserved)
        account.newest = allotment.revision
        account.grants[allotment.revision] = allotment.grant_bytes
        account.settle()

    def reported(self, name: str, revision: int, held_bytes: int) -> None:
        """Book what an engine reports; bytes that it no longer holds and may not take again become
        free.

        Raise `BadRevisionError` for a revision that was not sent or is older than one seen. Raise
        `BrokenPromiseError` if the engine holds more than it may; the true number is booked all the
        same, so that no more is lent.
        """
        account = self._account(name)
        known = revision in account.grants or revision == account.seen
        if revision < account.seen or not known:
            raise BadRevisionError(
                f"tenant {name!r} reports revision {revision}, after {account.seen}; sent were "
                f"{sorted(account.grants)}: its connection is to be closed"
            )
        allowed = account.reserved
        account.seen, account.held_bytes = revision, held_bytes
        account.grants = {r: g for r, g in account.grants.items() if r >= revision}
        account.settle()
        if held_bytes > allowed:
            raise BrokenPromiseError(
                f"tenant {name!r} holds {held_bytes} bytes and may hold {allowed}: stop it"
            )

    def lost(self, name: str) -> None:
        """Close the account of a tenant whose process is dead: its memory is free. No error if it
        has no account."""
        self._accounts.pop(name, None)

    def check(self) -> None:
        """Raise `OverCommitError` if tenants could hold more than the device."""
        if self.free_bytes < 0:
            accounts = {name: a.reserved for name, a in self._accounts.items()}
            raise OverCommitError(f"{accounts} bytes are reserved of {self.device_bytes}")

    def _account(self, name: str) -> Account:
        if name not in self._accounts:
            raise UnknownTenantError(f"tenant {name!r} has not joined: no allotment, no report")
        return self._accounts[name]

    def _demand(self, name: str, needed: int, available: int) -> None:
        if needed > available:
            raise OverCommitError(
                f"tenant {name!r} would hold {needed} bytes where {available} of "
                f"{self.device_bytes} are free: wait until others have given back"
            )
