"""Records of proofs of earlier starts, which hold for the same weights, code and kernels.

A record is a small file that only its owner can read, named by the hash of everything that the
outcome of a proof may depend on. A record that is damaged in any way counts as missing: the proof
is made, and recorded anew.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import msgspec
import torch
import vllm

from mirage import installed
from mirage.engine.identity import identity_of
from mirage.engine_settings import EngineSettings
from mirage.private_file import read_private, replace_private

logger = logging.getLogger("mirage.engine.proof_records")


def _stamps() -> list[installed.Stamp]:
    return [*installed.modules(), *installed.versions()]


CODE = _stamps()
"""Stamps of the code's files as they were when this process imported them."""
PLACES = {*installed.CACHES, "VLLM_RPC_BASE_PATH", "VLLM_DIST_IDENT"}
"""Variables for the places of one run's files and sockets, which do not affect what an engine
computes."""
OF_ONE_START = {
    *("control", "tier_socket", "keeper", "proofs", "tenant"),
    *("grant_bytes", "base_blocks", "layers_remapped", "stream_slots"),
}
"""Settings that differ between starts or tenants and do not affect a proof."""
CPU_INFO, DRIVER_INFO = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/version")
LONGEST = 1 << 20
"""Largest size of a record in bytes."""


class ProofRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record that a proof of the layers held."""

    key: str
    units: tuple[int, ...]
    """Bytes of each layer that moves."""


class ProvenBefore:
    """Record of the proof of one engine. Without a `path` there is no record, and none is made."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @classmethod
    def of(cls, vllm_config: Any, settings: EngineSettings) -> Self:
        """Return the record of this engine's proof, which need not exist yet."""
        key = None if settings.proofs is None else key_of(vllm_config, settings)
        return cls(None if key is None else Path(settings.proofs or "") / key)

    def found(self, units: Sequence[int]) -> ProofRecord | None:
        """Return the record, if the proof was made with layers of these sizes, in bytes; else
        None."""
        if self._path is None:
            return None
        try:
            checksum, _, told = read_private(self._path, LONGEST).partition(b"\n")
            if checksum != _checksum(told):
                raise ValueError("its checksum is another one")
            record = msgspec.json.decode(told, type=ProofRecord)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # msgspec's are such, too
            logger.warning("an earlier proof is not believed: %s", error)
            return None
        same = record.key == self._path.name and record.units == tuple(units)
        return record if same else None

    def note(self, units: Sequence[int]) -> None:
        """Record that the proof was made. If the file cannot be written, the next start makes the
        proof again."""
        if self._path is None:
            return
        record = ProofRecord(self._path.name, tuple(units))
        told = msgspec.json.encode(record)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private(self._path, _checksum(told) + b"\n" + told, lasting=False)
        except OSError as error:
            logger.warning("the proof is not remembered: %s", error)


def key_of(vllm_config: Any, settings: EngineSettings) -> str | None:
    """Return the hash of everything that the outcome depends on; None if part of it cannot be
    known."""
    facts = facts_of(vllm_config, settings)
    if None in facts.values():
        return None
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def facts_of(vllm_config: Any, settings: EngineSettings) -> dict[str, Any]:
    """Return the facts that the key is made of; None for a fact that cannot be known.

    Weights are identified as the keeper's masters are: by name, device, inode, size and
    modification time (mtime) of each file in the model's folder. Reading gigabytes for a hash of
    their contents would take as long as the proof that it saves.
    """
    scheduler = vllm_config.scheduler_config
    return {
        "weights": identity_of(vllm_config),
        "libraries": [vllm.__version__, torch.__version__, sys.version],
        "code": _code(),
        "processor": _processor(),
        "variables": _variables(os.environ),
        "arguments": [
            vllm_config.compute_hash(),
            scheduler.max_num_batched_tokens,
            scheduler.max_num_seqs,
            vllm_config.cache_config.block_size,
            repr(vllm_config.lora_config),
            repr(vllm_config.speculative_config),
        ],
        "settings": settings.model_dump(mode="json", exclude=OF_ONE_START),
    }


def _code() -> list[installed.Stamp] | None:
    """Return the stamps of the code that runs here; None if other code has been installed since."""
    return CODE if _stamps() == CODE else None


def _processor() -> list[Any]:
    """Return the kind and features of the processor, the number of threads, and the GPU with its
    driver."""
    found: list[Any] = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    found += [torch.get_num_threads(), *_told_of_cpu()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found += [torch.cuda.get_device_name(), torch.cuda.get_device_capability()]
        with suppress(OSError):
            found.append(DRIVER_INFO.read_text())
    return found


def _told_of_cpu() -> list[str]:
    """Return model and flags of the first processor, if Linux has them."""
    with suppress(OSError):
        first = CPU_INFO.read_text().partition("\n\n")[0].splitlines()
        return [line for line in first if line.startswith(("model", "flags", "Features", "CPU "))]
    return []


def _variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, text) for name, text in installed.telling(environment) if name not in PLACES]


def _checksum(told: bytes) -> bytes:
    return sha256(told).hexdigest().encode()
