"""Command line, environment and memory for a tenant's next engine, made from its declaration."""

from __future__ import annotations

from mirage.config import Config, TenantSection
from mirage.protocol import Allotment
from mirage.serve.adoption.code import order_of
from mirage.serve.engines.hollow import hollow_start
from mirage.serve.fit.fit import Fit
from mirage.serve.launch import launcher
from mirage.serve.rundir.folders import RunDir
from mirage.units import size


class EngineCommand:
    """Command of an engine of one declared tenant, which starts with its share or with less
    (hollow). `server` are the arguments of Python that run vLLM's server.
    """

    def __init__(
        self,
        config: Config,
        tenant: TenantSection,
        fit: Fit,
        rundir: RunDir,
        server: tuple[str, ...],
    ) -> None:
        self._model, self._fit = tenant.model, fit
        self.environment = launcher.environment(config, rundir) | launcher.switches(tenant)
        self.fetches_s = launcher.fetches_s(tenant)
        """Seconds for which the API server may fetch media that a request names."""
        self._begins = hollow_start(config, tenant, fit)

        def line(begins: Allotment | None = None) -> list[str]:
            socket, control = rundir.engine_socket(tenant.name), rundir.control_socket
            proofs = launcher.proofs_folder(config, rundir)
            return launcher.command(config, tenant, fit, socket, control, server, proofs, begins)

        self._whole = line()
        self._hollow = None if self._begins is None else line(self._begins)

    def words(self, hollow: bool = False) -> list[str]:
        """Arguments of the process; for a hollow start if `hollow` is true and the tenant can start
        so (`hollow_bytes`)."""
        return self._hollow if hollow and self._hollow is not None else self._whole

    def order(self) -> str:
        """Hash of the command line, of the environment, and of the sizes and modification times of
        the model's files, which this call reads.
        """
        return order_of(self._whole, self.environment, self._model)

    @property
    def hollow_bytes(self) -> int | None:
        """Bytes of device memory of a hollow start; None if this tenant has no hollow start."""
        return None if self._begins is None else self._begins.grant_bytes

    def told(self, hollow: bool) -> str:
        """Words for the log line of a start, with the memory of a `hollow` one or of the whole
        share.

        Such as ``"starting (share 12.0 GiB, parameters 8.0 GiB, 512 KV blocks)"``.
        """
        if hollow and self._begins is not None:
            streamed = self._begins.layers_remapped + self._begins.stream_slots
            held, layers = size(self._begins.grant_bytes), self._fit.layers
            return f"starting with {held}, {streamed} of {layers} layers streamed"
        share, parameters = size(self._fit.grant_bytes), size(self._fit.parameter_bytes)
        blocks = max(0, self._fit.base_blocks - 1)
        return f"starting (share {share}, parameters {parameters}, {blocks} KV blocks)"
