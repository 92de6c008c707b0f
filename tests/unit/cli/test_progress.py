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


def test_a_bar_leaves_stdout_to_the_block(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    with progress_bar("reading", is_writing=True) as report:
        assert report is not None
        sys.stdout.write("line\n")
    assert capsys.readouterr().out == "line\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with progress_bar("reading", is_writing=True) as report:
        assert report is None
