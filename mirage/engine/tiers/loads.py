"""Worker side of vLLM's offloading connector: loads of blocks."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)

from mirage.engine.tiers.copier import CopyJob
from mirage.engine.tiers.engine_tiers import EngineTiers
from mirage.engine.tiers.manager import PlacesSpec


class LoadJobs:
    """Load jobs that vLLM submitted: each is carried out as one `CopyJob`, and vLLM is told how it
    ended."""

    def __init__(self, tiers: EngineTiers) -> None:
        self._tiers = tiers
        self._jobs: dict[CopyJob, tuple[int, str, PlacesSpec]] = {}
        self._said = OffloadingWorkerMetadata()

    def begin(self, metadata: OffloadingConnectorMetadata) -> None:
        """Submit the loads of this step, and issue as many copies as the link has room for."""
        for number, entry in metadata.load_jobs.items():
            spec: Any = entry.src_spec
            destination: Any = entry.dst_spec
            blocks = [int(block) for block in destination.block_ids]
            job = CopyJob(True, blocks, spec.places)
            # The pool lost a block between its answer and the load.
            job.failed = len(blocks) != len(spec.places)
            self._jobs[job] = (number, entry.req_id, spec)
            self._tiers.copier.submit(job)
        if len(self._jobs) > 1:
            self._rank()
        self._tiers.copier.pump(self._tiers.spare_bytes())

    def _rank(self) -> None:
        """Rank the jobs in the order in which the scheduler will reach their requests."""
        places = {request: place for place, request in enumerate(self._tiers.loading())}
        for job, (_, request, _) in self._jobs.items():
            job.rank = places.get(request, len(places))

    def wait(self) -> None:
        """Issue all copies, and wait until every load has ended."""
        self._tiers.copier.wait(up=True)

    def ended(self) -> tuple[set[str], set[str]]:
        """Return the requests whose load has ended since the last call, and those of them whose
        load failed, so that they have to compute."""
        ended: set[str] = set()
        failed: set[str] = set()
        for job in self._tiers.copier.finished(up=True):
            number, request, spec = self._jobs.pop(job)
            self._said.mark_completed(number)
            ended.add(request)
            if job.failed:
                failed.add(request)
                self._tiers.manager.load_failed(request)
            else:
                self._tiers.manager.loaded(request, job.places)
                self._count(job, spec)
        return ended, failed

    def _count(self, job: CopyJob, spec: PlacesSpec) -> None:
        counts, tiers = self._tiers.counts, self._tiers
        counts.bytes_up += len(job.blocks) * tiers.block_bytes
        tiers.offers.held(job.blocks, spec.keys)

    def said(self) -> OffloadingWorkerMetadata | None:
        """Return the message to the scheduler side about jobs that have ended since the last call;
        None if none has."""
        if not self._said.completed_jobs:
            return None
        said, self._said = self._said, OffloadingWorkerMetadata()
        return said
