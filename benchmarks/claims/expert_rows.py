"""Rows of the gain that cold experts add to remapping. No paper claims one."""

from __future__ import annotations

from math import fsum

from benchmarks.claims.judging import Band, Results, Row, both

SKEWS = (0, 1, 2, 3, 4)
MACHINES = {"pcie": "H100, 51 GB/s", "c2c": "GH200, 427 GB/s"}
POLICIES = ("pooled", "mirage", "mirage-experts")
THROUGHPUT, PREEMPTIONS = "output_throughput", "preemptions"


def scene(machine: str, skew: int) -> str:
    """Name of a scene in `claims.yaml`."""
    return f"mixture-{machine}-{skew}"


EVERY = tuple(scene(machine, skew) for machine in MACHINES for skew in SKEWS)


def _added(results: Results, name: str) -> float:
    return results.ratio(name, "mirage-experts", "mirage", THROUGHPUT)


def _least(results: Results) -> float:
    return min(_added(results, name) for name in EVERY)


def _even(results: Results) -> float:
    return max(abs(100 * (_added(results, scene(machine, 0)) - 1)) for machine in MACHINES)


def _strong(results: Results) -> float:
    gains = [_added(results, scene(machine, SKEWS[-1])) for machine in MACHINES]
    return fsum(gains) / len(gains)


def _by_skew(results: Results) -> list[list[str]]:
    rows = [
        [
            "link",
            "skew",
            *(f"tokens/s, {policy}" for policy in POLICIES),
            "experts / layers",
            *(f"preempted, {policy}" for policy in POLICIES),
            "layers",
            "experts given",
            "loaded",
        ]
    ]
    for machine, title in MACHINES.items():
        for skew in SKEWS:
            name = scene(machine, skew)
            rows.append([title, str(skew), *_cells(results, name)])
    return rows


def _cells(results: Results, name: str) -> list[str]:
    def shown(policy: str, key: str) -> str:
        return f"{results.mean(name, policy, key):,.0f}"

    return [
        *(shown(policy, THROUGHPUT) for policy in POLICIES),
        f"{_added(results, name):.2f} x",
        *(shown(policy, PREEMPTIONS) for policy in POLICIES),
        shown("mirage", "layers_remapped_max"),
        f"{results.mean(name, 'mirage-experts', 'experts_remapped_max'):.1f} of 64",
        shown("mirage-experts", "expert_loads"),
    ]


NEEDS = tuple(pair for name in EVERY for pair in both(name, *POLICIES))
WHAT = "mirage-experts over mirage, output tokens/s"

BANDS: tuple[Row, ...] = (
    Band(
        "B24",
        f"A saturated mixture, {WHAT}: least",
        ">= 0.98 x",
        "OLMoE 1B-7B, 64 experts of which a token uses 8, and some 2 GB for KV. Over PCIe no layer "
        "hides, over NVLink-C2C one does. Routing follows a Zipf law of the exponent `skew`, which "
        "differs from layer to layer by up to a quarter; at 0 it is even. Prompts need more "
        "experts than decode, so that up to a skew of 2 there are none that steps hardly route to. "
        "Larger batches and loads make gaps between tokens a tenth longer on average, and P99 1.3 "
        "to 1.9 times as long: a step with a prompt waits for the experts that the prompt needs.",
        NEEDS,
        band=(0.98, None),
        unit="x",
        measure=_least,
        table=_by_skew,
    ),
    Band(
        "B25",
        f"The same with even routing, {WHAT}: change",
        "0 %",
        needs=NEEDS,
        band=(0, 0),
        measure=_even,
    ),
    Band(
        "B26",
        f"The same with a skew of {SKEWS[-1]}, {WHAT}: mean over both links",
        ">= 1.1 x",
        needs=NEEDS,
        band=(1.1, None),
        unit="x",
        measure=_strong,
    ),
)
