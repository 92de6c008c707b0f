import sys

import pytest

from triomq.cli.progress import progress_bar


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("checking") as report:
        assert report is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("checking") as report:
        assert report is not None
        report(1, 2)
        report(2, 2)
    captured = capsys.readouterr()
    assert "checking" in captured.err
    assert captured.out == ""
