"""A device with fake engines, served in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from routed import no_overview
from with_fakes import means

from mirage.config import Config
from mirage.processes.child import start_program
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.adoption.book import RunBook
from mirage.serve.device.domain import Domain
from mirage.serve.launch.preflight import preflight
from mirage.serve.routing.address import ServedAddress
from mirage.serve.rundir.folders import RunDir
from mirage.serve.tasks import together

LIMIT_S = 60.0


class DomainServed(NamedTuple):
    """A served device (`Domain`), the folder of its sockets, and its address."""

    domain: Domain
    sockets: Path
    url: str


@asynccontextmanager
async def domain_served(config: Config, *, all_or_nothing: bool) -> AsyncIterator[DomainServed]:
    """Serve a device with fake engines while the block runs; the block begins when the first starts
    are over. The engines end with the block, whatever happens.
    """
    found = preflight(config, means(start_program).probe)
    assert not found.refused
    with RunDir() as rundir, ReaperClient(*rundir.folders) as reaper:
        domain = Domain(found.config, found, rundir, reaper, means(start_program), LIMIT_S)
        registry, resize = domain.registry, domain.tiers.resize
        address = ServedAddress(
            found.config, registry, domain.desk, resize, no_overview, rundir, reaper, RunBook()
        )
        url = await address.start("127.0.0.1", 0)
        work = [domain.serve(all_or_nothing=all_or_nothing), address.keep()]
        serving = asyncio.create_task(together(work))
        try:
            started = asyncio.create_task(domain.tenants.started())
            await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            await domain.desk.connected()
            yield DomainServed(domain, rundir.sockets, url)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await address.drain()
            await domain.stop()
            await address.stop()
