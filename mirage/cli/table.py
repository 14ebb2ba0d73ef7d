"""Commands that are imported only when they run, the packages that they need, and advice for names
of commands that other programs have.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from mirage.errors import InputRefused

OPERATORS = "mirage.serve.admin.commands"
OWN_MODULES = {
    "ps": (
        OPERATORS,
        "ps_command",
        "List the tenants of a running server: state, memory, requests, what comes next.",
    ),
    "tenants": (
        OPERATORS,
        "tenants_command",
        "Show a tenant of a running server, wake, stop, change or remove it.",
    ),
    "apply": (
        OPERATORS,
        "apply_command",
        "Have a running server serve what a configuration file says.",
    ),
    "stop": (
        "mirage.serve.commands.stop",
        "stop_command",
        "Stop a running server, or end the engines that a killed one has left.",
    ),
    "fetch": (
        "mirage.serve.commands.fetch",
        "fetch_command",
        "Fetch models of a hub, which `mirage serve` would fetch at its start.",
    ),
    "weights": (
        "mirage.serve.commands.weights",
        "weights_command",
        "Keep models by content on this machine, and bring them from other machines.",
    ),
    "keys": (
        "mirage.serve.admin.key_commands",
        "keys_command",
        "Make API keys, list those of a file, or have a running server reload its own.",
    ),
    "why": (
        "mirage.serve.admin.why_command",
        "why_command",
        "Say why a running server moved memory, and what that cost and saved.",
    ),
    "top": (
        "mirage.tools.top.command",
        "top_command",
        "Show the tenants of a running server as they go, and sleep, wake, drain or stop them.",
    ),
    "logs": (OPERATORS, "logs_command", "Print the log of a tenant's engines."),
    "replay": (
        "mirage.tools.replay.command",
        "replay_command",
        "Replay a trace against `mirage serve` under several policies and compare them.",
    ),
    "simulate": (
        "mirage.tools.simulate.command",
        "simulate_command",
        "Simulate models that share a large GPU, policy by policy, and compare them.",
    ),
    "compare": (
        "mirage.tools.compare.command",
        "compare_command",
        "Set runs of replays and simulations beside each other, with intervals.",
    ),
    "explain": (
        "mirage.tools.explain.command",
        "explain_command",
        "Print the paper's arithmetic for CONFIG: how many layers hide, and what it brings.",
    ),
    "traces": (
        "mirage.tools.traces.command",
        "traces_command",
        "List public traces, or fetch them for --trace NAME.",
    ),
    "profile": (
        "mirage.tools.profile.command",
        "profile_command",
        "Measure this machine with the real engines of CONFIG, and write a hardware file.",
    ),
    "tune": (
        "mirage.tools.tune.command",
        "tune_command",
        "Find the settings with which CONFIG serves a trace best, by simulation.",
    ),
    "node": (
        "mirage.machines.ray.commands",
        "node_command",
        "Join machines to one cluster, show what runs there, and leave.",
    ),
    "doctor": (
        "mirage.doctor.command",
        "doctor_command",
        "Say what works on this machine: host memory, GPU, link, vLLM and its hooks.",
    ),
}
"""Module, function, and line in the list of commands, by the name of each command that is imported
only when it runs.
"""

INSTEAD = {
    **dict.fromkeys(("run", "start", "up"), "`mirage serve`"),
    **dict.fromkeys(("list", "ls", "status", "tenants list", "tenants ls"), "`mirage ps`"),
    **dict.fromkeys(("add", "create", "reload", "tenants add"), "`mirage apply -f FILE`"),
    **{verb: f"`mirage tenants {verb} NAME`" for verb in ("show", "sleep", "wake", "restart")},
    **dict.fromkeys(("rm", "remove", "delete"), "`mirage tenants remove NAME`"),
    "load": "`mirage tenants wake NAME`",
    "unload": "`mirage tenants stop NAME`",
    **dict.fromkeys(("pull", "download"), "`mirage fetch MODEL`"),
    **dict.fromkeys(("keys add", "keys create"), "`mirage keys new NAME`"),
    **dict.fromkeys(("kill", "down"), "`mirage stop`"),
    "help": "`mirage --help`",
    "version": "`mirage --version`",
}
"""Command of this program to use instead, by a command that other programs have for the same
purpose.
"""

SERVING = frozenset(
    {"doctor", "ps", "tenants", "logs", "apply", "keys", "stop", "why", "fetch", "weights"}
)
"""Commands of `OWN_MODULES` that need no packages beside those of `mirage serve`."""
TOOLS = ("ijson", "jinja2", "matplotlib", "optuna", "scipy")
"""Packages of the extra `tools`, by the names of their modules."""
CLUSTER = ("ray", "redis")
"""Packages of the extra `cluster`, for `node` and `serve --cluster`."""
TOP = ("textual",)
"""Package of the extra `top`, for the command `top`."""


def check_name(words: Sequence[str]) -> None:
    """Raise `InputRefused` if `words` begin with the name of a command that other programs have (a
    key of `INSTEAD`). The message names the command of this program that does the same."""
    for name in (" ".join(words[:1]), " ".join(words[:2])):
        if name in INSTEAD:
            raise InputRefused(f"no command {name!r} here: use {INSTEAD[name]}")


def check_extra(command: str, extra: str, packages: Sequence[str]) -> None:
    """Raises `InputRefused` if one of `packages` is not installed. Without this check the command
    would fail only when it writes its results.
    """
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        raise InputRefused(
            f"mirage {command} needs {', '.join(absent)}: run pip install '.[{extra}]' in the "
            "checkout of MIRAGE"
        )
