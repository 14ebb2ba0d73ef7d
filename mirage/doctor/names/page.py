"""docs/vllm-hooks.md, made from sources and tables: ``python -m mirage.doctor.names.page FILE``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from mirage.doctor.names.reading import gather
from mirage.doctor.names.tables import ENGINE, ROOT, sources
from mirage.doctor.names.uses import Either, FoundUses, NameUse, Need, is_theirs, of
from mirage.vllm_hooks import given
from mirage.vllm_hooks.reached import GRAPHS, HOOKS
from mirage.vllm_hooks.versions import minors, tables

HEAD = """\
# Hooks into vLLM

Made by `python -m mirage.doctor.names.page docs/vllm-hooks.md` from our sources, from
`mirage/vllm_hooks` and from its table of each version of vLLM that was tried: {versions}. A test
keeps it equal to what they say.

To port to a new vLLM, run `make names`. It writes a table of the names that we use, with their
parameters, for the vLLM that is installed and for the newest one, which it downloads (320 MB), and
then this page and the schemas of requests (`mirage/serve/router/request_schemas.json`).
`tests/pure/test_vllm_names.py` says which of our uses do not fit; the last section below lists the
differences between the versions. A function that has moved, or whose arguments have changed, gets a
wrapper in `mirage/engine/moved.py`. `mirage doctor` makes the same check on the vLLM that is
installed.
"""
GIVEN = "What vLLM is given by name"
CLASSES = "Our classes over vLLM's"
REPLACED = "Functions of ours in the place of vLLM's"
REACHED = "What is reached through objects"
EAGER = "The same for CUDA graphs"
MOVED = "What differs between versions"
NONE = "None of its functions.\n"
SAME = "Nothing that we use."


def page() -> str:
    """The whole text of docs/vllm-hooks.md."""
    seen = tables()
    found = gather(sources(ROOT, ENGINE))
    sections = {
        GIVEN: _rows(("vLLM calls it", "name"), _given()),
        CLASSES: "\n".join(_classes(found)),
        REPLACED: _rows(("vLLM's", "parameters", "ours"), _replaced(found)),
        REACHED: _rows(("class or module", "what of it"), _reached(HOOKS)),
        EAGER: _rows(("class or module", "what of it"), _reached(GRAPHS)),
        MOVED: _rows(("vLLM's", *seen), moved) if (moved := [*_moved()]) else f"{SAME}\n",
    }
    head = HEAD.format(versions=" and ".join(minors(seen)))
    return head + "".join(f"\n## {title}\n\n{text}" for title, text in sections.items())


def _rows(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = [*titles]
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _given() -> Iterator[tuple[str, str]]:
    for what, name in given.every().items():
        yield what, _code(name)


def _classes(found: FoundUses) -> Iterator[str]:
    """For each of our classes over one of vLLM's: the methods of that class that ours overrides."""
    derived = {base for each in found.classes.values() for base in each.bases}
    for name, each in sorted(found.classes.items()):
        methods = {use.name for other in found.line(name) for use in found.classes[other].methods}
        for base in filter(is_theirs, each.bases):
            said = {method: _parameters(of(base, method), value="a value") for method in methods}
            rows = [(_code(method), said[method]) for method in sorted(methods) if said[method]]
            if not rows and name in derived:
                continue  # it stands before what others of ours derive from beside it
            title = f"{_code(name.replace(':', '.'))} over {_code(base)}"
            yield f"### {title}\n\n" + (_rows(("vLLM's", "parameters"), rows) if rows else NONE)


def _replaced(found: FoundUses) -> list[tuple[str, str, str]]:
    """Rows about functions of vLLM that one of ours replaces while the program runs: vLLM's name,
    its parameters, and our file.

    They are functions in a module, and methods that `reached.py` lists for their class.
    """
    reached = {of(owner, _attribute(e)) for owner, es in (HOOKS | GRAPHS).items() for e in es}
    named = [(use.name, use) for use in _flat(found.needs) if use.replacement is not None]
    named += [(n, use) for use in found.replaced for n in reached if n.endswith(f".{use.name}")]
    rows = {(_code(n), text, _code(_file(use))) for n, use in named if (text := _parameters(n))}
    return sorted(rows)


def _reached(hooks: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for owner, entries in hooks.items():
        yield _code(owner), ", ".join(map(_code, entries))


def _moved() -> Iterator[list[str]]:
    """Names that differ between versions of vLLM, with the entry in each."""
    seen = [*tables().values()]
    for name in sorted({name for table in seen for name in table}):
        entries = [table.get(name) for table in seen]
        if len({*entries}) > 1:
            yield [_code(name), *("absent" if e is None else _said(e) for e in entries)]


def _parameters(name: str, value: str = "") -> str:
    """Parameters of a name, by version if they differ; `value` if it is no function, empty if no
    version has it.
    """
    by_text: dict[str, list[str]] = {}
    for version, table in tables().items():
        if (entry := table.get(name)) is not None:
            text = value if entry.startswith("<") else _said(entry)
            by_text.setdefault(text, []).append(version)
    if len(by_text) == 1:
        return next(iter(by_text))
    return "; ".join(f"{', '.join(versions)}: {text}" for text, versions in by_text.items())


def _said(entry: str) -> str:
    return "there" if entry.startswith("<") else _code(f"({entry})")


def _code(text: str) -> str:
    return f"`{text}`"


def _attribute(entry: str) -> str:
    return entry.partition("(")[0]


def _file(use: NameUse) -> str:
    return use.where.rpartition(":")[0]


def _flat(needs: Iterable[Need]) -> Iterator[NameUse]:
    for need in needs:
        if isinstance(need, Either):
            for each in need.lists:
                yield from _flat(each)
        else:
            yield need


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
