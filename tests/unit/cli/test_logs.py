import io
import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triomq.common.logs import JsonFormatter, LineFormatter, RepeatFilter, configure, reopen_log_file


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("triomq.test", logging.WARNING, "", 0, text, arguments, None)


def test_repeated_log_records_are_throttled_and_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    repeats = RepeatFilter()
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    passed = [repeats.filter(record("bad frame peer=%s", f"1.2.3.4:{port}")) for port in range(100)]
    assert sum(passed) == 20
    assert repeats.filter(record("something else"))
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    after = record("bad frame peer=%s", "x")
    assert repeats.filter(after)
    assert LineFormatter().format(after).endswith(" bad frame peer=x (and 80 more like this)")
    assert json.loads(JsonFormatter().format(after))["suppressed"] == 80


def test_storm_of_records_becomes_line_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    repeats = RepeatFilter()

    def passed(second: int, count: int) -> int:
        monkeypatch.setattr(time, "monotonic", lambda: float(second))
        return sum(repeats.filter(record("x")) for _ in range(count))

    counts = {second: passed(second, 30 if second < 200 else 0) for second in range(310)}
    assert {second: count for second, count in counts.items() if count} == {0: 20, 10: 1, 70: 1, 130: 1, 190: 1}
    assert passed(309, 2) == 1  # it has the count of the storm
    assert [passed(380, 2), passed(450, 1), passed(520, 30)] == [1, 1, 20]


def test_long_or_multiline_peer_text_is_cut() -> None:
    peers = "\n2026 FAKE\x1b" * 100_000
    error = ValueError(peers)
    made = logging.LogRecord("triomq.test", logging.ERROR, "", 0, "a=%s", (peers,), (ValueError, error, None))
    text = LineFormatter().format(made)
    assert len(text) < 50_000
    assert text.count("more characters)") == 2
    assert not [line for line in text.splitlines()[1:] if not line.startswith(" ")]
    assert "\x1b" not in text
    encoded = JsonFormatter().format(made)
    assert len(encoded) < 50_000
    assert "ValueError: " in json.loads(encoded)["traceback"]


def test_record_is_one_line_with_time_and_level() -> None:
    made = record("remark=%s", "a\nFAKE line\r\x1b[2J\u2028ä")
    made.created, made.msecs = 0.0, 7.9
    assert (
        LineFormatter().format(made)
        == "1970-01-01T00:00:00.007Z WARNING triomq.test remark=a\\nFAKE line\\r\\x1b[2J\\u2028ä"
    )


def test_logging_goes_to_stderr_from_the_level_on(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    configure("warning")
    logging.getLogger("triomq.x").info("quiet")
    logging.getLogger("triomq.x").warning("loud")
    for port in range(200):
        logging.getLogger("triomq.x").warning("bad frame peer=%d", port)
    first, *repeated = stderr.getvalue().splitlines()
    assert first.endswith(" WARNING triomq.x loud")
    assert 0 < len(repeated) < 100


@pytest.mark.parametrize("package", ["triomq.client", "triomq.broker"])
def test_warnings_reach_stderr_without_logging_config(package: str) -> None:
    program = f"import logging, {package}; log = logging.getLogger('{package}.x'); log.warning('loud'); log.info('low')"
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == (b"", b"loud\n")


def test_importing_triomq_alone_imports_no_logging() -> None:
    program = "import sys; before = set(sys.modules); import triomq; sys.exit('logging' in set(sys.modules) - before)"
    subprocess.run((sys.executable, "-c", program), check=True, timeout=30)


@pytest.mark.parametrize(
    ("text", "arguments", "event", "fields"),
    [
        ("stopping signal=%s", ("SIGTERM",), "stopping", {"signal": "SIGTERM"}),
        (
            "store open root=%s records=%d seconds=%.3f",
            (Path("/s"), 3, 0.5),
            "store-open",
            {"root": "/s", "records": 3},
        ),
        ("Group %s: time=%s level=%s", ("g", 1, 2), "group", {"time_": 1, "level_": 2}),
        ("plain", (), "plain", {}),
    ],
)
def test_json_names_the_event_and_its_fields(
    text: str, arguments: tuple[object, ...], event: str, fields: dict[str, object]
) -> None:
    made = record(text, *arguments)
    made.created, made.msecs = 0.0, 7.9
    found = json.loads(JsonFormatter().format(made))
    own = {"time": "1970-01-01T00:00:00.007Z", "level": "WARNING", "logger": "triomq.test", "event": event}
    assert {**found, **own, **fields, "message": text % arguments} == found


def test_a_moved_log_file_is_opened_again(logger: logging.Logger, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    configure("info", str(tmp_path / "replaced.log"))
    configure("info", str(path), "json")
    logging.getLogger("triomq.x").info("one")
    path.rename(tmp_path / "old.log")
    reopen_log_file()
    assert path.read_text() == ""
    assert json.loads((tmp_path / "old.log").read_text())["event"] == "one"
    assert (tmp_path / "replaced.log").read_text() == ""
    assert len(logger.handlers) == 1


def test_log_file_rotates_by_size_with_mode_600(logger: logging.Logger, tmp_path: Path) -> None:
    configure("info", str(tmp_path / "x.log"), max_bytes=1000, backups=2)
    for number in range(80):
        logging.getLogger("triomq.x").info(f"{number:0100}")  # noqa: G004  # each text is another kind
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["x.log", "x.log.1", "x.log.2"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert all(path.stat().st_size <= 1000 for path in files)
    files[0].rename(tmp_path / "x.log.moved")
    logging.getLogger("triomq.x").info("last")
    assert files[0].read_text().endswith(" last\n")
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("is_link", [True, False])
def test_a_log_file_without_rename_grows(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    (tmp_path / "real").touch()
    if is_link:
        (tmp_path / "x.log").symlink_to(tmp_path / "real")
    else:
        monkeypatch.setattr("os.rename", refused)
    configure("info", str(tmp_path / "x.log"), max_bytes=1, backups=1)
    for number in range(3):
        logging.getLogger("triomq.x").info("hello %d", number)
    assert (tmp_path / "x.log").read_text().count("hello") == 3
    assert (tmp_path / "x.log").is_symlink() == is_link
