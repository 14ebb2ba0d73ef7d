"""The reported cost of a loan, for a real engine that lends its layers to a fake one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from supervised import serving

from benchmarks.loans import LENDER, Bench, Pair, show, write_config
from benchmarks.loans_engine import BORROWER, REST
from mirage.serve.admin.address import listening
from mirage.serve.admin.client import AdminClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROGRAM = """
import sys
from pathlib import Path
from benchmarks.ablations import ablated
from benchmarks.loans_engine import starting
from mirage.cli import main
from mirage.serve.launch.programs import Means
from tests.e2e.warm import Warm
warm = Warm(Path.cwd())
with ablated(decode_cap=False):
    main(sys.argv[1:], Means(start=starting(warm.start), probe=warm.address))
"""
PAIRS = 12


def test_rounds_that_lend_are_told_to_cost_and_no_others(tmp_path: Path) -> None:
    """Rounds with and without lending alternate. Those with lending have a reported cost, the
    others have none; the measured cost is printed beside it.
    """
    (wish := tmp_path / "wish").write_text(REST)
    config = write_config(tmp_path, layers=12, layer_mib=4, lent=4, link_gb_s=0.5)
    variables = {"LOANS_FILE": str(wish)}
    with serving(config, fake=False, program=PROGRAM, environment=variables) as served:
        served.drain()
        (socket,) = (path for path, who in listening().items() if who.pid == served.process.pid)
        admin = AdminClient(socket)
        bench = Bench(served.url, admin, wish, streams=4, tokens=20)
        pairs: list[Pair] = asyncio.run(bench.pairs(PAIRS))
        show(pairs)
        print("\n".join(bench.sentences()))
        (loan,) = (one for one in admin.why(LENDER, 1e5).loans if one.borrower == BORROWER)
    assert [one.lent.layers for one in pairs] == [4] * PAIRS
    assert all(one.lent.told_s > 0 for one in pairs)
    assert [(one.kept.told_s, one.kept.layers) for one in pairs] == [(0.0, 0)] * PAIRS
    assert loan.requests >= 4 * PAIRS and loan.most_layers == 4
    assert loan.tokens >= 4 * 19 * PAIRS
