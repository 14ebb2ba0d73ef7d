"""Physical pages of this process: their roles, and the limit to their bytes (the grant).

A page is in use under one role ("layer", "kv", ...), or spare. Spare pages are kept, because giving
them another role is cheaper than releasing and creating pages. All pages together stay within the
grant. Only a lowered grant may be less than the pages in use; then no page is spare.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from vmm.driver import Driver, GrantExceeded, Page, UnknownPage, VmmError
from vmm.runs import pick


class PagePool:
    """Pages of one driver, at most `grant_bytes`, rounded down to whole pages.

    Calls may come from any thread. A refused call changes nothing.
    """

    def __init__(self, driver: Driver, grant_bytes: int) -> None:
        self.driver = driver
        self._page_bytes = driver.page_bytes
        self._lock = threading.RLock()
        self._roles: dict[Page, str] = {}
        self._spare: set[Page] = set()
        self._grant_bytes = _checked(grant_bytes)
        self._most = self._grant_pages

    @property
    def grant_bytes(self) -> int:
        return self._grant_bytes

    @property
    def in_use_bytes(self) -> int:
        """Bytes of pages that have a role."""
        return len(self._roles) * self._page_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of all pages of this pool, in use and spare."""
        with self._lock:
            return (len(self._roles) + len(self._spare)) * self._page_bytes

    @property
    def available(self) -> int:
        """Pages that `take` may still hand out under the grant; the device may have fewer."""
        with self._lock:
            return max(0, self._grant_pages - len(self._roles))

    def role(self, page: Page) -> str | None:
        """Role of a page in use; None for any other page."""
        return self._roles.get(page)

    def take(self, count: int, role: str) -> list[Page]:
        """`count` pages for `role`, all or none: ascending, and in few runs of consecutive pages.

        Spare pages are used first. A page may hold old bytes: the caller clears it. Raises
        `GrantExceeded` if `count` pages beside those in use are beyond the grant, and `OutOfMemory`
        if the device has too little memory.
        """
        with self._lock:
            self._check_grant(count, role)
            pages = pick(self._spare, count)
            if missing := count - len(pages):
                pages += self.driver.create(missing)
            self._spare.difference_update(pages)
            self._roles.update(dict.fromkeys(pages, role))
            return sorted(pages)

    def take_most(self, count: int, unit: int, role: str) -> list[Page]:
        """Take `count` pages for `role`, or as many whole units of `unit` pages as the device has
        memory for.

        `count` is a multiple of `unit`. Pages of an incomplete unit stay spare. Raises
        `GrantExceeded` if `count` pages beside those in use are beyond the grant.
        """
        with self._lock:
            self._check_grant(count, role)
            pages = pick(self._spare, count)
            pages += self.driver.create_most(count - len(pages))
            taken = pages[: len(pages) // unit * unit]
            self._spare = self._spare.union(pages).difference(taken)
            self._roles.update(dict.fromkeys(taken, role))
            return sorted(taken)

    def give(self, pages: Iterable[Page]) -> None:
        """End the roles of these pages, which the caller has unmapped.

        They become spare within the grant, and are released beyond it. Raises `UnknownPage` if one
        of them has no role or is named twice, and `StillMapped` if one to be released is mapped.
        """
        with self._lock:
            given = self._in_use(pages)
            self._shed(self._spare | set(given), len(self._roles) - len(given))
            for page in given:
                del self._roles[page]
            self._most = max(self._grant_pages, len(self._roles))

    def set_grant(self, grant_bytes: int) -> None:
        """Set the grant. It may be less than the bytes held: spare pages beyond it are released
        immediately, and `take` refuses until enough pages were given back (`give`). Raises
        `StillMapped` if a page to be released is mapped; the grant stays as it was then.
        """
        with self._lock:
            before, self._grant_bytes = self._grant_bytes, _checked(grant_bytes)
            try:
                self._shed(self._spare, len(self._roles))
            except VmmError:
                self._grant_bytes = before
                raise
            self._most = max(self._grant_pages, len(self._roles))

    def trim(self) -> None:
        """Release all spare pages. Raises `StillMapped` if one of them is mapped."""
        with self._lock:
            self.driver.release(sorted(self._spare))
            self._spare = set()

    def check_integrity(self) -> None:
        """Raise `VmmError` unless roles, spare pages, grant and device agree."""
        with self._lock:
            if both := self._roles.keys() & self._spare:
                raise VmmError(f"page {min(both)} is spare and in use")
            in_use, spare = len(self._roles), len(self._spare)
            if in_use > self._most:
                raise VmmError(f"{in_use} pages in use, {self._most} at most were allowed")
            if spare and in_use + spare > self._grant_pages:
                raise VmmError(f"{spare} spare pages are beyond a grant of {self._grant_pages}")
            if (used := self.driver.used_bytes()) < self.held_bytes:
                raise VmmError(f"{self.held_bytes} bytes held, but {used} on the device")

    @property
    def _grant_pages(self) -> int:
        return self._grant_bytes // self._page_bytes

    def _check_grant(self, count: int, role: str) -> None:
        if count < 0:
            raise VmmError(f"{count} pages for {role!r}: a count is not negative")
        in_use = len(self._roles)
        if count and in_use + count > self._grant_pages:
            raise GrantExceeded(
                f"{count} pages wanted for {role!r}: {in_use} in use, {self._grant_pages} granted "
                f"({self._grant_bytes} bytes, {self._page_bytes} a page): give pages back or "
                "raise the grant"
            )

    def _in_use(self, pages: Iterable[Page]) -> Sequence[Page]:
        listed = list(pages)
        for page, times in Counter(listed).items():
            if page not in self._roles:
                raise UnknownPage(f"page {page} is not in use in this pool")
            if times > 1:
                raise UnknownPage(f"page {page} is named {times} times in one call")
        return listed

    def _shed(self, spare: set[Page], in_use: int) -> None:
        """Keep as many of `spare` as the grant allows beside `in_use` pages, and release the
        rest.
        """
        room = max(0, self._grant_pages - in_use)
        keep = spare if len(spare) <= room else set(pick(spare, room))
        self.driver.release(sorted(spare - keep))
        self._spare = keep


def _checked(grant_bytes: int) -> int:
    if grant_bytes < 0:
        raise VmmError(f"a grant of {grant_bytes} bytes: a grant is not negative")
    return grant_bytes
