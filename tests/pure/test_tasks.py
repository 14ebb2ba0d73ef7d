"""The event loop keeps no task alive, so whoever begins one must keep it until it is done."""

from __future__ import annotations

import ast
import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from test_callbacks import ROOT, trees

from mirage.errors import CommandFailed
from mirage.serve.admin.declaring import Declaring
from mirage.serve.apply.revision import Revision

pytestmark = pytest.mark.pure
BEGIN = {"create_task", "ensure_future", "shield"}
KEEP = (ast.Assign, ast.AnnAssign)
THROUGH = (ast.Tuple, ast.List, ast.ListComp, ast.SetComp, ast.DictComp)


def begun(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Calls that begin a task, each with the syntax node that gets its result."""
    above = {below: node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("asyncio.") in BEGIN:
            parent = above[node]
            while isinstance(parent, THROUGH):
                parent = above[parent]
            yield node, parent


def nobodys(tree: ast.AST) -> list[str]:
    """Source of the calls whose task is kept nowhere. A shielded task counts as kept if it has a
    name.
    """
    return [
        ast.unparse(call)
        for call, parent in begun(tree)
        if not (
            isinstance(call.args[0], ast.Name | ast.Attribute)
            if ast.unparse(call.func) == "asyncio.shield"
            else isinstance(parent, KEEP)
        )
    ]


def test_every_task_has_an_owner() -> None:
    found = [f"{path}: {call}" for path, tree in trees(ROOT) for call in nobodys(tree)]
    assert not found


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("task = asyncio.create_task(work())", True),
        ("a, b = asyncio.ensure_future(work()), asyncio.create_task(work())", True),
        ("tasks = [asyncio.create_task(one) for one in every]", True),
        ("tasks = {name: asyncio.create_task(one) for name, one in every}", True),
        ("asyncio.shield(self._ended)", True),
        ("asyncio.create_task(work())", False),
        ("asyncio.wait([asyncio.ensure_future(work())])", False),
        ("asyncio.shield(work())", False),
    ],
)
def test_an_owner_is_found(code: str, kept: bool) -> None:
    assert bool(nobodys(ast.parse(code))) is not kept


class Stuck:
    """Stand-in for the applier of configurations: it waits for a future that only the waiting task
    itself refers to.
    """

    revision = Revision()
    awaited: weakref.ref[asyncio.Future[None]]
    done = False

    async def apply(self, *_: Any, **__: Any) -> None:
        awaited = asyncio.get_running_loop().create_future()
        self.awaited = weakref.ref(awaited)
        await awaited
        self.done = True
        raise CommandFailed("enough")


async def _removed() -> bool:
    """Ask to remove a tenant, let the client go away, and collect garbage. True if the tenant is
    removed all the same.
    """
    stuck = Stuck()
    *_, delete = Declaring(stuck).routes()  # type: ignore[arg-type]
    request = make_mocked_request("DELETE", "/tenants/a", match_info={"name": "a"})
    asked = asyncio.ensure_future(delete.handler(request))  # type: ignore[arg-type]
    while not hasattr(stuck, "awaited"):
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    gc.collect()
    awaited = stuck.awaited()
    assert awaited is not None, "it was collected in the middle"
    awaited.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return stuck.done


def test_what_an_operator_sent_is_done_though_nobody_waits_for_it() -> None:
    assert asyncio.run(_removed())
