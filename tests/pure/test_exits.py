"""Exit of a command: an error gives one line and an exit code, and an exception from a fault of the
program passes unchanged.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, field_serializer
from pydantic_core import PydanticSerializationError

from mirage.config import ConfigError
from mirage.errors import CommandFailed, InputRefused
from mirage.processes.exits import exits
from mirage.tools.report.files import make_room, write_all

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            InputRefused("--seed x: write\n a number"),
            2,
            "mirage: error: --seed x: write a number\n",
        ),
        (ConfigError("c.yaml: no tenants"), 2, "mirage: error: c.yaml: no tenants\n"),
        (CommandFailed("the server ended"), 1, "mirage: error: the server ended\n"),
        (FileNotFoundError(2, "No such file", "a.csv"), 1, "mirage: error: a.csv: No such file\n"),
        (OSError("no route"), 1, "mirage: error: no route\n"),
        (KeyboardInterrupt(), 130, "mirage: interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    with pytest.raises(SystemExit) as ended, exits():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr() == ("", line)


def test_a_fault_of_the_program_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), exits():
        raise ZeroDivisionError
    with pytest.raises(OSError, match="no route"), exits(failures=(CommandFailed,)):
        raise OSError("no route")
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_that_a_library_wrapped_is_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    class Wraps(BaseModel):
        at: int

        @field_serializer("at")
        def interrupted(self, at: int) -> int:
            raise KeyboardInterrupt

    with pytest.raises(PydanticSerializationError):
        Wraps(at=1).model_dump(mode="json")
    with pytest.raises(SystemExit) as ended, exits():
        Wraps(at=1).model_dump(mode="json")
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "mirage: interrupted\n")


def test_ctrl_c_may_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, exits(interrupted=""):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_room_is_made_where_every_file_can_be_put(tmp_path: Path) -> None:
    output = tmp_path / "out" / "here"
    make_room(output, [output / "a", output / "b"])
    assert list(output.iterdir()) == []
    (output / "b").mkdir()
    with pytest.raises(ConfigError, match="here: b is a folder there: name another"):
        make_room(output, [output / "a", output / "b"])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file: cannot be written \(File exists\)"):
        make_room(tmp_path / "file", [tmp_path / "file" / "a"])


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_all({tmp_path / "a": "after", tmp_path / "b": "\ud800"})
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"
    write_all({tmp_path / "a": "after", tmp_path / "b": "é"})
    assert (tmp_path / "a").read_text() == "after"
    assert (tmp_path / "b").read_bytes() == "é".encode()


def test_a_disk_that_is_full_is_told_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SystemExit) as ended, exits():
        write_all({tmp_path / "report.json": "{}"})
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"mirage: error: {tmp_path}: No space left on device\n"
