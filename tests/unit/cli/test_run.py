import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from triomq.cli import main
from triomq.cli.errors import UsageError
from triomq.cli.output import write_text
from triomq.protocol import errors as e


def replace_ping(run: Callable[[object], int], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("triomq.cli.commands.health")
    vars(module)["ping"] = run
    monkeypatch.setitem(sys.modules, "triomq.cli.commands.health", module)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``triomq ping`` raise the error."""

    def run(_options: object) -> NoReturn:
        raise error

    replace_ping(run, monkeypatch)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (e.NameServerError("nobody\nanswers"), 3, "nobody answers"),
        (e.ConnectError("x"), 3, "x"),
        (e.ConnectionLostError("x"), 3, "x"),
        (e.RequestTimeoutError("x"), 3, "x"),
        (e.ConfigError("x"), 2, "x"),
        (UsageError("x"), 2, "x"),
        (e.IllegalNameError("x"), 2, "x"),
        (e.SubscriptionParseError("x"), 2, "x"),
        (e.NoRouteError("x"), 1, "x"),
        (e.ClientError(""), 1, "ClientError"),
        (e.BrokerSystemError(1, "bad \x1b[2J\x9b1m"), 1, "SYSTEM_ERROR(1): bad \\x1b[2J\\x9b1m"),
        (e.TopicNotExistError(17, "no T"), 1, "TOPIC_NOT_EXIST(17): no T; create it: triomq topic create TOPIC"),
        (ExceptionGroup("g", [ExceptionGroup("h", [e.StoreFullError("no room")]), e.ConfigError("x")]), 1, "no room"),
        (OSError("broken"), 1, "broken"),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError()]), 130, ""),
    ],
)
def test_error_becomes_one_line_and_exit_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(error, monkeypatch)
    assert main(["ping"]) == code
    assert capsys.readouterr() == ("", f"triomq ping: {line}\n" if line else "")


@pytest.mark.parametrize("error", [KeyError("x"), ExceptionGroup("g", [e.ClientError("x"), KeyError("x")])])
def test_a_defect_of_ours_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(error, monkeypatch)
    with pytest.raises(type(error)) as raised:
        main(["ping"])
    assert raised.value is error


def test_debug_shows_the_traceback_of_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(e.NameServerError("x"), monkeypatch)
    with pytest.raises(e.NameServerError):
        main(["ping", "--log-level", "debug"])


def test_help_and_wrong_options_return_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["nonsense"]) == 2


def test_an_unwritable_log_file_is_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ping", "--log-file", "/proc/triomq/x.log"]) == 2
    assert "--log-file" in capsys.readouterr().err


def test_closed_standard_streams_do_not_fail_command(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    command = (sys.executable, "-m", "triomq.cli", "store", "info", "--store", str(tmp_path))
    done = subprocess.run(
        ("sh", "-c", 'exec "$@" <&- >&-', "sh", *command), stderr=subprocess.PIPE, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run(("sh", "-c", 'exec "$@" 2>&-', "sh", *command), capture_output=True, timeout=30, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith(b"WHAT")


@pytest.mark.parametrize(("words", "written"), [([], b"\\xe4 \\u4e2d\n"), (["--json"], "ä 中\n".encode())])
def test_text_unsupported_by_locale_does_not_fail(
    words: list[str], written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_options: object) -> int:
        write_text("ä 中\n")
        return 0

    replace_ping(run, monkeypatch)
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "ascii"))
    assert main(["ping", *words]) == 0
    assert output.getvalue() == written
