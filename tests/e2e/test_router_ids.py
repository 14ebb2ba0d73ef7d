"""`X-Request-Id`: in every answer, at the engine, and in the blame for an engine's end."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients import connected, one_answer
from test_router import Site, dies_at_once, run, slow_stream
from test_router_open import BROKEN

from mirage.serve.http.request_id import SANE

pytestmark = pytest.mark.e2e
NAME = "X-Request-Id"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/live", 200),
        ("/metrics", 200),
        ("/v1/models", 200),
        ("/nowhere", 404),
        ("/v1/models/x", 404),
    ],
)
def test_an_id_that_is_sane_comes_back(tmp_path: Path, path: str, status: int) -> None:
    async def scenario(site: Site) -> None:
        for given, same in ((None, False), ("a.B:c-1_2", True), ("a b", False), ("x" * 129, False)):
            headers = {} if given is None else {NAME: given}
            async with site.http.get(site.url + path, headers=headers) as answer:
                assert answer.status == status
                told = answer.headers.getall(NAME)
            assert len(told) == 1 and SANE.fullmatch(told[0])
            assert (told == [given]) is same

    run(tmp_path, scenario)


async def of_its_own(engine, request):  # type: ignore[no-untyped-def]
    from aiohttp import web

    return web.json_response({}, headers={NAME: "the-engines"})


def test_engine_and_client_hear_the_same_id(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = of_its_own
        for sent in ({}, {NAME: "mine"}, {NAME: "not sane"}):
            async with site.post({"model": "a"}, headers=sent) as answer:
                told = answer.headers.getall(NAME)
            got = {k.lower(): v for k, v in site.a.seen[-1]["headers"].items()}  # type: ignore[attr-defined]
            assert told == [got[NAME.lower()]]
            assert (told == ["mine"]) is (sent == {NAME: "mine"})

    run(tmp_path, scenario)


def test_streams_and_errors_of_a_model_have_one(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer, site.b.answer = slow_stream, dies_at_once
        for body, status in (
            (b"{", 400),
            ({"model": "c"}, 404),
            ({"model": "b/1"}, 502),
            ({"model": "a"}, 200),
        ):
            async with site.post(body, headers={NAME: "mine"}) as answer:
                assert (answer.status, answer.headers[NAME]) == (status, "mine")

    run(tmp_path, scenario)


def test_what_is_no_request_gets_one_as_well(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for status, data in BROKEN.values():
            reader, writer = await connected(site.url, data)
            found, headers, _ = await one_answer(reader)
            assert found == status and SANE.fullmatch(headers[NAME.lower()])
            writer.close()

    run(tmp_path, scenario)


def test_a_suspect_has_it(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.b.answer = dies_at_once
        async with site.post({"model": "b/1"}, headers={NAME: "the-last-one"}) as answer:
            assert answer.status == 502
        broken = site.router.tenants["b/1"].suspects._broken
        assert "id 'the-last-one'" in str(broken[0][1])

    run(tmp_path, scenario)
