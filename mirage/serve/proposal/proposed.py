"""Proposal for the models named on a command line, made before their weights are fetched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mirage import __version__
from mirage.config import ConfigError, TenantSection, made
from mirage.config_versions import numbered
from mirage.errors import InputRefused
from mirage.folder import reading
from mirage.folder.model_config import read_config
from mirage.folder.tokenizer import SETTINGS, Settings
from mirage.hub.fetched import Say
from mirage.serve.apply.source import Written, hash_of
from mirage.serve.launch import vllm_facts
from mirage.serve.launch.preflight import refusal, refused_here
from mirage.serve.models.hubs import CODE, outlined
from mirage.serve.proposal.machine import this_machine
from mirage.serve.proposal.proposing import LONGEST, HostMachine, OfferedModel, Proposal, propose
from mirage.serve.proposal.words import TRUST, NamedModel, is_config, named

MOST_TOKENS = 2**31


def source_of(
    words: Sequence[str],
    trusted: Sequence[str],
    memory: str | None,
    probe: vllm_facts.Probe,
    say: Say,
    write_to: Path | None = None,
) -> tuple[Path, Written | None]:
    """Configuration file that the words name, and None; or the words as a path, and a proposal.

    `trusted` are the models whose own code may run. The proposal is printed by `say`, and written
    to `write_to` unless that is None. Raises `InputRefused` for a model that cannot be served, or
    not on this machine, for `trusted` models or `write_to` beside a configuration file, and if
    `write_to` exists. Raises `CommandFailed` if a hub fails.
    """
    first = Path(words[0])
    if len(words) == 1 and is_config(words[0], folder=first.is_dir(), file=first.is_file()):
        if trusted or write_to is not None:
            option = "--write-config" if write_to is not None else TRUST
            raise InputRefused(
                f"{option} works only with models, and {words[0]} is a file: leave it out"
            )
        return first, None
    if write_to is not None and write_to.exists():
        raise ConfigError(f"--write-config {write_to}: it exists already: name another file")
    proposal, written = proposed(words, trusted, memory, probe, say)
    for line in proposal.lines:
        say(f"proposed: {line}")
    if write_to is not None:
        write(proposal, write_to)
        say(f"{write_to} has it: mirage serve {write_to} serves it")
    return written.path, written


def proposed(
    words: Sequence[str],
    trusted: Sequence[str],
    memory: str | None,
    probe: vllm_facts.Probe,
    say: Say,
) -> tuple[Proposal, Written]:
    """Proposal for models in folders or at a hub, which takes some ten seconds; also as `Written`.

    Raises `InputRefused` for a model that cannot be served, or not on this machine, and
    `CommandFailed` if a hub fails.
    """
    machine = this_machine(memory)
    folders = [Path(w).resolve().name if Path(w).is_dir() else None for w in words]
    models = named(words, folders, trusted)
    here, path = Path.cwd(), Path(" ".join(words))
    config = made(_asked(models, machine), path, here)
    with outlined(config, say) as seen:
        lengths = {tenant.name: _longest(tenant, machine) for tenant in seen.tenants}
        tenants = [t.model_copy(update={"max_model_len": lengths[t.name]}) for t in seen.tenants]
        seen = seen.model_copy(update={"tenants": tenants})
        if not (refused := refused_here(seen)):
            facts, refused = vllm_facts.ask(seen, probe)
        commits = {tenant.name: tenant.model.name for tenant in seen.tenants}
    if refused:
        raise refusal(refused)
    offered = [
        OfferedModel(t.name, _model(t, commits[t.name]), facts[t.name], lengths[t.name], one.code)
        for one, t in zip(models, config.tenants, strict=True)
    ]
    proposal = propose(machine, offered)
    return proposal, Written(numbered(proposal.raw), path, here, hash_of(text(proposal)))


def text(proposal: Proposal) -> str:
    """Proposed configuration as the text of a file, with its explanation in comments at the top."""
    first = f"Proposed by mirage {__version__}; docs/configuring.md has every key."
    said = [first, *proposal.lines]
    comments = "".join(f"# {line}\n" for line in said)
    keys = numbered(proposal.raw)
    return comments + yaml.safe_dump(keys, sort_keys=False, allow_unicode=True, width=100)


def write(proposal: Proposal, file: Path) -> None:
    """Write a proposal to a new file. Raises `ConfigError` if it exists, or cannot be
    written."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text(proposal))
    except OSError as error:
        raise ConfigError(f"--write-config {file}: {error.strerror}: name another file") from None


def _asked(models: Sequence[NamedModel], machine: HostMachine) -> dict[str, Any]:
    """Configuration by which vLLM is asked about the models."""
    arguments = {"engine_args": {CODE: True}}
    tenants = [
        {"name": one.name, "model": one.word, "share": "auto", **(arguments if one.code else {})}
        for one in models
    ]
    device = {"kind": machine.kind, "memory": machine.device_bytes}
    return numbered({"device": device, "tenants": tenants})


def _longest(tenant: TenantSection, machine: HostMachine) -> int:
    """Most tokens of a request that the tenant's model allows by its folder, on a host no more than
    `LONGEST`; the tenant's `max_model_len` if the folder tells no number.
    """
    said = read_config(tenant.model)
    stacks = [stack for stack in (said, said.text_config) if stack is not None]
    own = [stack.max_position_embeddings for stack in stacks]
    if reading.there(tenant.model / SETTINGS):
        own.append(_tokens(reading.read(tenant.model / SETTINGS, Settings).model_max_length))
    known = [tokens for tokens in (*own, LONGEST[machine.kind]) if tokens]
    return min(known) if any(own) else tenant.max_model_len


def _tokens(told: float | None) -> int | None:
    """Length from a tokenizer's settings; None for the huge number that means no limit."""
    return int(told) if told is not None and 0 < told < MOST_TOKENS else None


def _model(tenant: TenantSection, commit: str) -> str:
    return f"{tenant.hub.repository}@{commit}" if tenant.hub is not None else str(tenant.model)
