"""GenTD26, Alibaba's trace of a service for image models: the times of requests to 87 models.

Columns are found by name. The times, and the models that rows name, are real; the rows are requests
for images, so lengths are drawn from ShareGPT's distribution by the seed. Failed requests, and rows
that name no model, are skipped. Schema:
https://github.com/alibaba/clusterdata/tree/master/cluster-trace-v2026-GenAI
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from mirage.workload import drawing
from mirage.workload.formats import table
from mirage.workload.formats.checks import Clock
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.formats.stamps import nanoseconds
from mirage.workload.lengths import lengths

HEADER = ("gmt_create", "predict_status", "checkpoint_model_version_id")
TIME, STATUS, MODEL = HEADER
FAILED, NAMELESS = "failed requests", "rows that name no model"
LENGTHS = "sharegpt"


def _read(source: Source) -> Iterator[TraceRequest]:
    clock, rng = Clock(), random.Random(f"gentd26 {source.seed}")
    shape = lengths(LENGTHS)
    source.say(f"its requests are for images: lengths are drawn, as {LENGTHS}'s")
    for where, row in table.rows(source, HEADER):
        arrival_s = clock.since_first(nanoseconds(row[TIME], where), row[TIME], where)
        if row[STATUS] == "FAILED" or not row[MODEL]:
            source.skip(FAILED if row[MODEL] else NAMELESS)
            continue
        prompt, output = drawing.lengths(rng, shape)
        yield TraceRequest(arrival_s, prompt, output, model=row[MODEL])


FORMAT = Format(
    "gentd26",
    f"CSV, header with {','.join(HEADER)}",
    partial(table.has, wanted=HEADER),
    _read,
    nearly=partial(table.separated_otherwise, wanted=HEADER),
)
