"""Check of a tenant's `engine_args`, and of the environment, against the tables of rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mirage.arguments.rules import Verdict
from mirage.arguments.table import TABLE
from mirage.arguments.variables import ENVIRONMENT
from mirage.problems import nearest
from mirage.secrets import places, redacted

ALIASES = {
    "O": "optimization_level",
    "ac": "attention_config",
    "asc": "api_server_count",
    "cc": "compilation_config",
    "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size",
    "device_memory_utilization": "gpu_memory_utilization",
    "dp": "data_parallel_size",
    "dpa": "data_parallel_address",
    "dpb": "data_parallel_backend",
    "dpe": "data_parallel_external_lb",
    "dph": "data_parallel_hybrid_lb",
    "dpl": "data_parallel_size_local",
    "dpm": "data_parallel_multi_port_external_lb",
    "dpn": "data_parallel_rank",
    "dpp": "data_parallel_rpc_port",
    "dpr": "data_parallel_start_rank",
    "ep": "enable_expert_parallel",
    "h": "help",
    "n": "nnodes",
    "pcp": "prefill_context_parallel_size",
    "pp": "pipeline_parallel_size",
    "q": "quantization",
    "r": "node_rank",
    "sc": "speculative_config",
    "tp": "tensor_parallel_size",
}
"""Short and other spellings of vLLM's arguments, each with the name of its argument."""


SWITCHES = {
    "aggregate_engine_logging",
    "data_parallel_multi_port_external_lb",
    "disable_log_stats",
    "grpc",
    "headless",
}
"""Arguments without a ``--no-`` flag: for the value false the flag is left out."""

OPPOSITES = {"enable_": "disable_", "disable_": "enable_"}
"""Opposite of each prefix: ``enable_x`` with true is ``disable_x`` with false."""

JSON_LISTS = {"allowed_headers", "allowed_methods", "allowed_origins"}
"""Arguments whose value is a list that vLLM takes as one word of JSON; other lists are several
words.
"""

REPEATED = {"middleware"}
"""Arguments whose value is a list, and whose flag is repeated for each item."""


OWN = "VLLM_"
"""Prefix of vLLM's environment variables."""
OF_A_SERVICE = re.compile(
    r"VLLM_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
    r"|VLLM_\w+_PORT"
)
"""Variables that Kubernetes sets for a service named ``vllm...``; vLLM reads none of them."""


class ArgumentRefused(ValueError):
    """Error: an argument or a variable of the environment cannot be served; the message is one line
    for the user.
    """


def normalised(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """`engine_args` by vLLM's own names: no hyphens, short flags, opposites or dots.

    Raises `ArgumentRefused` for an argument given twice (two mappings are merged, unless both have
    the same key), or a dotted key that is empty or ends in ``+``.

    ``{"-O": 3, "no-enable-lora": True, "cc.mode": 0}`` is
    ``{"optimization_level": 3, "enable_lora": False, "compilation_config": {"mode": 0}}``.
    """
    out: dict[str, Any] = {}
    for written, given in engine_args.items():
        name, value = _spelled_out(str(written), given)
        if name in out and not (isinstance(out[name], dict) and isinstance(value, dict)):
            raise ArgumentRefused(f"engine_args.{written}: {name} is given twice: remove one")
        out[name] = _merged(out[name], value, name) if name in out else value
    return out


def check_names(engine_args: Mapping[str, Any]) -> None:
    """Raise `ArgumentRefused` for the first argument that MIRAGE does not serve with its value.

    It is also raised for an argument that is given twice, and for one that contains a secret.
    """
    normalised(engine_args)  # raises if two spellings of one argument disagree
    for written, given in engine_args.items():
        name, value = _spelled_out(str(written), given)
        if reason := refusal(name, value):
            raise ArgumentRefused(f"engine_args.{written}{reason}")
        if place := next(places(given, str(written)), None):
            raise ArgumentRefused(
                f"engine_args.{place} is a secret, and a command line shows it: "
                "remove it, and give it in the environment"
            )


def refusal(name: str, value: Any) -> str | None:
    """Reason to refuse `value` of vLLM's argument `name`; None if it is served.

    The text is to follow the argument's name in a message.
    """
    if (rule := TABLE.get(name)) is None:
        return _unknown(name)
    if rule.verdict is Verdict.OURS:
        return f" follows from the rest of the configuration: remove it, and use {rule.words}"
    if (found := rule.problem(value)) is None:
        return None
    path, part, why = found
    shown = _shown(redacted(part, name + path))
    return f"{path}: {shown} is refused: {why}{_instead(rule.but if not path else ())}"


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises `ArgumentRefused` for the first variable, in the order of names, that engines must not
    inherit: its value is refused, or its name begins with ``VLLM_`` and is unknown. Empty
    variables, and those that Kubernetes sets, are allowed.
    """
    for name in sorted(environment):
        value, rule = environment[name], ENVIRONMENT.get(name)
        if not value:
            continue
        if rule is None and name.startswith(OWN) and not OF_A_SERVICE.fullmatch(name):
            raise ArgumentRefused(
                f"{name} in the environment is no variable of the vLLM that MIRAGE was tried with: "
                f"check its spelling, or unset it{nearest(name, ENVIRONMENT)}"
            )
        if rule is not None and rule.verdict is Verdict.REFUSED and rule.problem(value):
            raise ArgumentRefused(
                f"{name}={redacted(value, name)} in the environment is refused: {rule.words}: "
                f"unset it{_or_use(rule.but)}"
            )


def blamed(error: str, environment: Mapping[str, str]) -> str:
    """Hint at the variables whose values an error of vLLM's quotes; empty if there is none.

    The hint is to be appended to the error. vLLM reads a variable when it needs it, and its error
    for a value that is no number does not name the variable.
    """
    names = [n for n in sorted(environment) if n in ENVIRONMENT and repr(environment[n]) in error]
    return f" ({' or '.join(names)} in the environment: correct it, or unset it)" if names else ""


def _unknown(name: str) -> str:
    return (
        " is no argument of the vLLM that MIRAGE was tried with: "
        f"check its spelling, or remove it{nearest(name, TABLE)}"
    )


def _instead(fine: tuple[Any, ...]) -> str:
    return f"; remove it{_or_use(tuple(map(_shown, fine)))}"


def _or_use(fine: tuple[str, ...]) -> str:
    return f", or use {' or '.join(fine)}" if fine else ""


def _shown(value: Any) -> str:
    text = {True: "true", False: "false", None: "null"}.get(value) if _plain(value) else None
    text = text or repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _spelled_out(written: str, value: Any) -> tuple[str, Any]:
    """Name and value of the argument that the user wrote as `written`, as vLLM has them.

    Raises `ArgumentRefused` for a dotted key that is empty or ends in ``+``.
    """
    flag, *keys = written.lstrip("-").split(".")
    name = flag.replace("-", "_")
    if level := re.fullmatch(r"O=?([0-9]+)", name):
        return "optimization_level", int(level[1])
    name = ALIASES.get(name, name)
    if name not in TABLE and isinstance(value, bool) and (other := _opposite(name)):
        name, value = other, not value
    if any(not key or key.endswith("+") for key in keys):
        raise ArgumentRefused(f"engine_args.{written}: write a list, or keys inside of {name}")
    for key in reversed(keys):
        value = {key: value}
    return name, value


def _opposite(name: str) -> str | None:
    """Argument that vLLM has for the negation of the argument `name`; None if there is none."""
    if name.startswith("no_"):
        return name.removeprefix("no_")
    for begins, other in OPPOSITES.items():
        known = other + name.removeprefix(begins)
        if name.startswith(begins) and known in TABLE and known not in SWITCHES:
            return known
    return None


def _merged(one: dict[str, Any], other: dict[str, Any], name: str) -> dict[str, Any]:
    out = dict(one)
    for key, value in other.items():
        if key not in out:
            out[key] = value
        elif isinstance(out[key], dict) and isinstance(value, dict):
            out[key] = _merged(out[key], value, f"{name}.{key}")
        else:
            raise ArgumentRefused(f"engine_args: {name}.{key} is given twice: remove one")
    return out
