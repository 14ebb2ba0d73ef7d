"""Files that are not plain text: packed traces are read, all others are refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile
from contextlib import suppress

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.workload.trace import (
    AS_IT_SAYS,
    Reading,
    TraceError,
    TraceRequest,
    has_arrivals,
    read,
    select,
)
from tests.examples import examples

pytestmark = pytest.mark.pure

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808,10\n"
TWO = AZURE + b"2023-11-16 18:17:04.4,3180,8\n"
MEANT = [TraceRequest(0.0, 4808, 10), TraceRequest(0.5, 3180, 8)]
SYNTHETIC = b"kind: synthetic\nrate: 5\nlengths: short\nrequests: 3\n"
PACKED = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.fixture
def write(tmp_path):
    def written(content: bytes, name: str = "trace"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return written


def refusal(path, how: Reading = AS_IT_SAYS) -> str:
    with pytest.raises(TraceError) as caught:
        list(read(path, how))
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400 and message.startswith(str(path))
    assert message.isprintable() and "�" not in message
    return message.removeprefix(str(path))


@pytest.mark.parametrize("how", PACKED)
@pytest.mark.parametrize("name", [None, "azure"])
def test_a_packed_trace_is_read_as_it_is_unpacked(write, how, name):
    path = write(PACKED[how](TWO), "trace.csv.gz")
    assert list(read(path, Reading(name))) == MEANT
    assert has_arrivals(path)
    assert select(path, (0.25, 9)) == [TraceRequest(0.25, 3180, 8)]


@pytest.mark.parametrize("how", PACKED)
def test_a_packed_trace_may_have_several_members(write, how):
    pack = PACKED[how]
    assert list(read(write(pack(AZURE) + pack(TWO.removeprefix(AZURE))))) == MEANT


def test_a_packed_synthetic_trace_is_drawn(write):
    assert list(read(write(gzip.compress(SYNTHETIC)))) == list(read(write(SYNTHETIC, "plain")))


@pytest.mark.parametrize("how", PACKED)
def test_a_packed_trace_comes_through_a_pipe(tmp_path, how):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    feeder = threading.Thread(target=path.write_bytes, args=(PACKED[how](TWO),))
    feeder.start()
    assert list(read(path)) == MEANT
    feeder.join()


def test_a_pipe_that_gives_a_byte_at_a_time_is_read_alike(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def feed() -> None:
        with path.open("wb", buffering=0) as pipe:
            for byte in gzip.compress(TWO):
                pipe.write(bytes([byte]))

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert list(read(path)) == MEANT
    feeder.join()


@pytest.mark.parametrize("how", PACKED)
@pytest.mark.parametrize("damage", ["cut", "flipped", "followed"])
def test_a_damaged_packed_trace_is_named(write, how, damage):
    rows = b"".join(b"2023-11-16 18:%02d:04.4,%d,8\n" % (n // 99, n) for n in range(1, 5000))
    whole = PACKED[how](AZURE.splitlines(True)[0] + rows)
    middle = len(whole) // 2
    content = {
        "cut": whole[:middle],
        "flipped": whole[:-8] + bytes(b ^ 0xFF for b in whole[-8:]),
        "followed": whole + b"and more",
    }[damage]
    if damage == "followed" and how != "gzip":
        pytest.skip("what follows a stream of bzip2 or xz is left out")
    said = refusal(write(content))
    assert f"{how} file is damaged" in said and "fetch it anew" in said


def test_a_file_packed_twice_is_named(write):
    twice = gzip.compress(gzip.compress(TWO))
    assert "gzip inside of gzip: unpack it once" in refusal(write(twice))
    assert "bzip2 inside of gzip" in refusal(write(gzip.compress(bz2.compress(TWO))))


def test_a_packed_file_is_closed_however_its_reading_ends(write):
    before = psutil.Process().num_fds()
    for content in (gzip.compress(TWO), gzip.compress(b"a,b,c"), gzip.compress(TWO)[:12]):
        requests = read(write(content))
        with suppress(TraceError):
            next(requests)
        requests.close()
        assert psutil.Process().num_fds() == before


def archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        info = tarfile.TarInfo("trace.csv")
        info.size = len(TWO)
        tar.addfile(info, io.BytesIO(TWO))
    return file.getvalue()


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name in names:
            made.writestr(name, TWO)
    return file.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 27901454\n"
NAMED = [
    (LFS, "pointer of Git LFS to a file of 27,901,454 bytes", "git lfs pull"),
    (b"../../.git/annex/objects/aa/bb/SHA256E-s9--00.jsonl\n", "git-annex", "git annex get"),
    (b"/annex/objects/SHA256E-s9--00.jsonl\n", "git-annex", "git annex get"),
    (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "a web page", "fetch the file itself"),
    (b"\xef\xbb\xbf\n  <html lang='en'>", "a web page", "fetch the file itself"),
    (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "XML", "fetch"),
    (b"404: Not Found", "answer of a web server", "correct the address"),
    (zipped("trace.csv"), "a ZIP archive", "unpack it"),
    (zipped("[Content_Types].xml", "xl/workbook.xml"), "a spreadsheet (xlsx)", "save it as CSV"),
    (b"PK\x05\x06" + bytes(18), "a ZIP archive", "unpack it"),
    (archive(), "a tar archive", "tar -xf"),
    (gzip.compress(archive(), mtime=0), "a tar archive", "tar -xf"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "spreadsheet (xls)", "save it as CSV"),
    (b"PAR1\x15\x04\x15", "a Parquet file", "write it as CSV or JSON lines"),
    (b"ARROW1\0\0\xff\xff", "an Arrow file", "write it as CSV or JSON lines"),
    (b"FEA1\0\0\0\0", "a Feather file", "write it as"),
    (b"ORC\x0a\x0b", "an ORC file", "write it as"),
    (b"Obj\x01\x04\x14", "an Avro file", "write it as"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "write it as"),
    (b"SQLite format 3\0", "an SQLite database", "write the table as"),
    (b"\x93NUMPY\x01\0v\0", "a NumPy array", "write it as"),
    (b"\x80\x05\x95\0\0", "a Python pickle", "write it as"),
    (b"\x28\xb5\x2f\xfd\x24\x09", "packed with zstd", "zstd -d"),
    (b"\x04\x22\x4d\x18\x64\x40", "packed with LZ4", "lz4 -d"),
    (b"7z\xbc\xaf\x27\x1c\0\4", "a 7z archive", "unpack it"),
    (b"Rar!\x1a\x07\x01\0", "a RAR archive", "unpack it"),
    (b"%PDF-1.7\n%\xe2\xe3", "a PDF", "another file"),
    (b"\x89PNG\r\n\x1a\n\0\0", "a picture", "another file"),
    (TWO.decode().encode("utf-16"), "UTF-16", "iconv -f UTF-16"),
    (TWO.decode().encode("utf-16-be"), "UTF-16", "iconv -f UTF-16"),
    (TWO.decode().encode("utf-16-le"), "UTF-16", "iconv -f UTF-16"),
    (b"\xfe\xff" + '{"prompt": "a"}'.encode("utf-16-be"), "UTF-16", "iconv -f UTF-16"),
    (TWO.decode().encode("utf-32"), "UTF-32", "iconv -f UTF-32"),
    (b"\x7fELF\x02\x01\x01\0\0\0", "no text", "another file"),
    (bytes(5000), "no text", "another file"),
    (b"", "is empty", "fetch it anew"),
    (gzip.compress(b"", mtime=0), "is empty", "fetch it anew"),
]


@pytest.mark.parametrize(("content", "what", "instead"), NAMED)
@pytest.mark.parametrize("name", [None, "azure", "mooncake", "alpaca"])
def test_a_file_of_another_kind_is_named_with_what_to_do(write, content, what, instead, name):
    said = refusal(write(content), Reading(name, None if name != "alpaca" else 1.0))
    assert what in said and instead in said


@pytest.mark.parametrize("begin", [b"\n\n", b"\r\n" + TWO, b" \n{}"])
def test_a_file_that_begins_with_a_blank_line_is_told_so(write, begin):
    assert "begins with a blank line: remove it" in refusal(write(begin))


def test_bytes_that_are_no_text_are_not_printed(write):
    said = refusal(write(b"\xc3\x28\xfd" * 30 + b"\n"))
    assert "line 1: is no UTF-8 text" in said and "iconv" in said


@given(content=st.binary(max_size=200), how=st.sampled_from(sorted(PACKED)))
@examples(100)
def test_any_packed_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content, how):
    path = tmp_path_factory.mktemp("packed") / "trace"
    path.write_bytes(PACKED[how](content))
    try:
        list(read(path))
    except TraceError as error:
        assert "\n" not in str(error) and str(error).startswith(str(path))


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_columns_apart_by_other_marks_are_told_so(write, mark):
    said = refusal(write(TWO.replace(b",", mark.encode())))
    assert f"columns are separated by {mark!r}: write commas" in said
