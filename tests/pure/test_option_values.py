"""Wrong values of options and arguments: the message has option, value and what to write."""

from __future__ import annotations

import pytest

from mirage import cli

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["serve", "c", "--port", "99999"], "--port: found '99999', write 65535 or less"),
        (["serve", "c", "--lease", "-1"], "--lease: found '-1', write 0 or more"),
        (["serve", "c", "--startup-timeout", "x"], "--startup-timeout: found 'x', write a number"),
        (["serve", "c", "--policy", "y"], "--policy: 'y' is not one of 'static', 'pooled', "),
        (["logs", "a", "-n", "-1"], "--lines: found '-1', write 0 or more"),
        (["tenants", "set", "a", "--drain", "1e9"], "--drain: found '1e9', write 1000000 or less"),
        (["explain", "c", "--context", "0"], "--context: found '0', write 1 or more"),
        (["doctor", "--device", "a"], "--device: found 'a', write a whole number"),
        (["weights", "lst"], "'lst' is not one of 'list', 'add'"),
        (["serve", "c", "--portt", "1"], "No such option: --portt"),
    ],
)
def test_a_wrong_value_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert not told.out
    assert told.err.startswith("mirage: error: ")
    assert line in told.err and told.err.count("\n") == 1
