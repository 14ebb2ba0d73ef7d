"""Command `mirage check`."""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import chain
from typing import Annotated

import typer

from mirage.cli.options import KeysOption, MemoryOption, PolicyOption
from mirage.errors import InputRefused
from mirage.options import JsonOption, ServedWords, TrustOption
from mirage.printed import json_object


def check_command(
    context: typer.Context,
    words: ServedWords,
    policy: PolicyOption = None,
    keys: KeysOption = None,
    memory: MemoryOption = None,
    trust: TrustOption = None,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Only print CONFIG with the keys of this release; comments are kept.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check CONFIG and print what each tenant's share holds, without starting anything.

    For models at a hub it says how much would be fetched. It fetches no weights.
    """
    from mirage.processes.interrupt import terminate_like_interrupt
    from mirage.serve.access.server_keys import ServerKeys, key_lines, key_source
    from mirage.serve.apply.source import ConfigSource, has_devices
    from mirage.serve.commands.check import SCHEMA_VERSION, as_object, checked, told
    from mirage.serve.commands.check_cluster import checked_cluster, names_of, told_cluster
    from mirage.serve.commands.upgrade import upgraded_text
    from mirage.serve.launch.preflight import refusal
    from mirage.serve.launch.programs import Means
    from mirage.serve.machine.parts import names_machines
    from mirage.serve.proposal.proposed import source_of

    if upgrade and as_json:
        raise InputRefused("--upgrade prints YAML: leave out --json")
    if upgrade:
        typer.echo(upgraded_text(words), nl=False)
        return
    probe = (context.obj or Means()).probe
    with terminate_like_interrupt():
        aside = partial(typer.echo, err=as_json)
        path, proposed = source_of(words, trust or (), memory, probe, aside)
        source = ConfigSource(path, policy, None if proposed else memory, proposed=proposed)
        file, access = source.written(), ServerKeys(key_source(keys, os.environ))
        say = (lambda line: None) if proposed else aside
        heads = [""]
        if names_machines(file.raw):
            if as_json:
                raise InputRefused("--json cannot be used with a file for --cluster: leave it out")
            cluster = checked_cluster(source, file)
            of_keys = key_lines(access, names_of(cluster), time.time())
            for line in chain(told_cluster(cluster), of_keys):
                typer.echo(line)
            return
        if has_devices(file.raw):
            from mirage.serve.clients.certificate import check_tls
            from mirage.serve.machine.declared import declared_machine

            machine = declared_machine(source, file).outlined(probe)
            check_tls(machine.declared.common.http)  # no device has this section
            aside("\n".join(machine.lines))
            heads = [f"device {device.name}:" for device in machine.devices]
            found = [checked(device.config, probe, say) for device in machine.devices]
        else:
            found = [checked(source.declared(file), probe, say)]
    names = list(dict.fromkeys(name for one in found for name in one.names))
    of_keys = list(key_lines(access, names, time.time()))
    if as_json:
        devices = [as_object(one) for one in found]
        typer.echo(json_object(SCHEMA_VERSION, {"devices": devices, "keys": of_keys}))
    else:
        for head, one in zip(heads, found, strict=True):
            for line in ([head] if head else []) + list(told(one)):
                typer.echo(line)
        for line in of_keys:
            typer.echo(line)
    told_of = zip(heads, found, strict=True)
    if refused := [
        f"{head} {refusal(one.refused)}".strip() for head, one in told_of if one.refused
    ]:
        raise InputRefused("; ".join(refused))
