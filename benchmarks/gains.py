"""Gain of `mirage` over `pooled`, by link bandwidth and load.

    .venv/bin/python benchmarks/gains.py [--seeds 0-2] [--requests 600] [--output FILE]

Two 13B models and an 8B one, as in C1, are simulated on a GH200, with temporal and with spatial
sharing. Each column has another bandwidth of the link, and each row another load. The program
prints a table of tokens a second and one of the end-to-end mean, and draws both into FILE.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from mirage.config import read_yaml
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.run import run
from mirage.tools.simulate.command import parse_seeds

ROOT = Path(__file__).parent.parent
LINKS = (12, 25, 51, 100, 200, 427, 900)
"""GB/s: PCIe 3, 4 and 5 with 16 lanes, what lies between, GH200 and GB200."""
RATES = (1, 2, 4, 8, 16)
"""Requests a second of each of the three models."""
MODES = {
    "in turns of 2 s": {"mode": "temporal", "turn_s": 2.0},
    "in turns of 2 s, drained": {"mode": "temporal", "turn_s": 2.0, "drain": True},
    "at once": {"mode": "spatial"},
}
FIGURES = {"tokens/s": "output_throughput", "end-to-end mean": "mean_e2el_ms"}

Grid = list[list[float]]
"""Figures by rate, then by link."""


def world(sharing: dict[str, Any], link: float, rate: float, requests: int) -> Setup:
    """Setup of experiment C1 with this link in GB/s, and this request rate of each model."""
    written = read_yaml(ROOT / "configs" / "experiments" / "c1.yaml")
    tenants = [tenant | {"rate": rate} for tenant in written["tenants"]]
    changed = {"link_gb_s": link, "sharing": sharing, "tenants": tenants, "policies": ["mirage"]}
    workload = written["workload"] | {"requests": requests}
    return Setup(Experiment.model_validate(written | changed | {"workload": workload}))


def grids(sharing: dict[str, Any], requests: int, seeds: list[int]) -> dict[str, Grid]:
    """Medians over seeds of `mirage` over `pooled`, by figure, load and link."""
    found: dict[str, Grid] = {name: [] for name in FIGURES}
    for rate in RATES:
        # `pooled` moves no layers: its link does not matter.
        pooled = [run(world(sharing, LINKS[0], rate, requests), "pooled", s) for s in seeds]
        rows: dict[str, list[float]] = {name: [] for name in FIGURES}
        for link in LINKS:
            setup = world(sharing, link, rate, requests)
            ours = [run(setup, "mirage", seed) for seed in seeds]
            for name, key in FIGURES.items():
                ratios = (
                    mine[key] / theirs[key] for mine, theirs in zip(ours, pooled, strict=True)
                )
                rows[name].append(statistics.median(ratios))
        for name in FIGURES:
            found[name].append(rows[name])
    return found


def table(name: str, how: str, grid: Grid) -> str:
    """Markdown table of one figure: links in columns, loads in rows. `how` names the mode, in the
    table's corner."""
    head = f"| {name}, {how} | " + " | ".join(f"{link} GB/s" for link in LINKS) + " |\n"
    rule = "|---|" + "---:|" * len(LINKS) + "\n"
    rows = (
        f"| {rate:g} requests/s each | " + " | ".join(f"{value:.2f}" for value in row) + " |\n"
        for rate, row in zip(RATES, grid, strict=True)
    )
    return head + rule + "".join(rows)


def draw(every: dict[str, dict[str, Grid]], file: Path) -> None:
    """Draw one panel for each mode and figure; green is better than `pooled`, red worse."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(every), 6.4), layout="constrained")
    panels = figure.subplots(len(FIGURES), len(every), squeeze=False)
    for column, (how, found) in enumerate(every.items()):
        for row, (name, grid) in enumerate(found.items()):
            axes = panels[row][column]
            larger = name == "tokens/s"
            colours = "RdYlGn" if larger else "RdYlGn_r"
            axes.imshow(
                grid, cmap=colours, norm=TwoSlopeNorm(1, 0.4, 1.6), aspect="auto", origin="lower"
            )
            for y, values in enumerate(grid):
                for x, value in enumerate(values):
                    axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8)
            axes.set_xticks(range(len(LINKS)), [str(link) for link in LINKS])
            axes.set_yticks(range(len(RATES)), [f"{rate:g}" for rate in RATES])
            axes.set_title(f"{name}, {how}", fontsize=10)
            axes.set_xlabel("link, GB/s")
            axes.set_ylabel("requests/s of each model")
    figure.suptitle("mirage / pooled: three models of 13B, 13B and 8B on 96 GB")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    asked = arguments()
    every: dict[str, dict[str, Grid]] = {}
    for how, sharing in MODES.items():
        every[how] = grids(sharing, asked.requests, asked.seeds)
        for name, grid in every[how].items():
            print(table(name, how, grid), flush=True)
    draw(every, asked.output)
    print(f"Written: {asked.output}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=parse_seeds, default=[0, 1, 2])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "pictures" / "gains.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
