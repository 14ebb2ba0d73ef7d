"""Coroutines that run until all are done, or one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Hashable, Iterable
from typing import Any


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines until all are done; the first error cancels the others and is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Crew:
    """Named tasks that begin and end. `keep` raises the error of the task that fails first. Call
    `stop` at the end."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._over = asyncio.Event()
        self._error: BaseException | None = None

    def begin(self, name: Hashable, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task; no other task of that name may run."""
        task = self._tasks[name] = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._ended(name, task))

    async def end(self, name: Hashable) -> None:
        """Cancel the task, and wait until it has ended; nothing happens if there is none."""
        if (task := self._tasks.get(name)) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def ended(self, names: Collection[Hashable]) -> None:
        """Wait until no task of these names runs; tasks of these names that begin meanwhile are
        waited for as well."""
        while tasks := [self._tasks[name] for name in names if name in self._tasks]:
            await asyncio.wait(tasks)

    def has(self, name: Hashable) -> bool:
        """True while a task of that name runs."""
        return name in self._tasks

    def check(self) -> None:
        """Raise the error of the task that failed first; do nothing if none has failed."""
        if self._error is not None:
            raise self._error

    async def keep(self) -> None:
        """Wait until a task fails, and raise its error."""
        await self._over.wait()
        self.check()

    async def stop(self) -> None:
        """Cancel all tasks, and wait until they have ended. Raises none of their errors."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, name: Hashable, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._over.set()
