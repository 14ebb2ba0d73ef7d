"""All formats that are read. A new one is a module in this folder, and a line in `_KNOWN`."""

from __future__ import annotations

from mirage.workload.formats import (
    alpaca,
    azure,
    burstgpt,
    custom,
    gentd26,
    guidellm,
    mooncake,
    ragpulse,
    servegen,
    sharegpt,
    synthetic,
    timed,
)
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import TraceError
from mirage.workload.formats.source import Source

_KNOWN: list[Format] = [
    azure.FORMAT,
    burstgpt.FORMAT,
    mooncake.FORMAT,
    guidellm.FORMAT,
    timed.FORMAT,
    ragpulse.FORMAT,
    gentd26.FORMAT,
    servegen.FORMAT,
    sharegpt.FORMAT,
    alpaca.FORMAT,
    custom.FORMAT,
    synthetic.FORMAT,
]
FORMATS = {each.name: each for each in _KNOWN}


def named(name: str) -> Format:
    """The format of that name. Raises `TraceError` if there is none."""
    if name not in FORMATS:
        raise TraceError(f"trace format {name!r}: choose from {', '.join(FORMATS)}")
    return FORMATS[name]


def of(source: Source) -> Format:
    """Format of a file, by its beginning.

    Logs a warning if the beginning may also be read in another way (`Format.doubt`), for example
    with times in another unit. Raises `TraceError` if the beginning fits no format, or several.
    """
    fitting = [each for each in FORMATS.values() if each.fits(source.head)]
    if len(fitting) == 1:
        (form,) = fitting
        if (doubt := form.doubt(source.head)) is not None:
            source.say(f"read as {form.name}: {doubt}")
        return form
    if fitting:
        which = " or ".join(f"{each.name} ({each.looks})" for each in fitting)
        raise TraceError(
            f"{source.path}: may be {which}: say which (--trace-format, or workload.trace_format)"
        )
    if not source.head.line and not source.head.fields:
        raise TraceError(f"{source.path}: begins with a blank line: remove it")
    if "\ufffd" in source.head.line:
        raise TraceError(
            f"{source.path}, line 1: is no UTF-8 text: write the file as such (iconv -t UTF-8 "
            "FILE), or name another one"
        )
    if (why := next(filter(None, (each.nearly(source.head) for each in _KNOWN)), None)) is not None:
        raise TraceError(f"{source.path}, line 1: {why}")
    raise TraceError(
        f"{source.path}, line 1: found {source.head.line[:80]!r}, as no known format begins: "
        f"bring it into one of {', '.join(FORMATS)}, or name its "
        "format (--trace-format, or workload.trace_format)"
    )
