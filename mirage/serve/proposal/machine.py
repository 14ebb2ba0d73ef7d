"""Machine for which a configuration is proposed: its GPU, or its host memory."""

from __future__ import annotations

from mirage.config import ConfigError, parse_bytes
from mirage.serve.proposal.proposing import HostMachine
from vmm.driver import VmmError
from vmm.host_memory import host_memory


def this_machine(memory: str | None) -> HostMachine:
    """This machine, with its first GPU as device if there is one, else host memory.

    `memory` is the size of the device that the user wants, None to propose one. Raises
    `ConfigError` for an invalid size.
    """
    try:
        asked = None if memory is None else parse_bytes(memory)
    except ValueError:
        raise ConfigError(f"--memory {memory!r}: write a size as 64GiB, at most 1EiB") from None
    host = host_memory().bytes
    try:
        from vmm.cuda_device import device_facts

        gpu = device_facts(0)
    except (ImportError, VmmError):
        return HostMachine("host", host, host, "host memory", asked)
    return HostMachine("cuda", gpu.total_bytes, host, gpu.name, asked)
