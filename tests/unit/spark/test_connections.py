"""The clients that a worker process keeps, its retries, and its warnings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest

from triomq.client.config import ClientConfig, TlsConfig
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, ConnectError, NoPermissionError, RequestTimeoutError, SystemBusyError
from triomq.protocol.wire.signing import Credentials
from triomq.spark import connections
from triomq.spark.connections import Retry, borrow_client, client_config, close_clients
from triomq.spark.options.options import Options, Use, parse_options


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Mock]]:
    """Clients of ``client.sync``, with their settings and whether they are open."""
    made: list[Mock] = []

    def open_client(_: str, config: ClientConfig) -> Mock:
        client = MagicMock(credentials=config.credentials, is_open=True)
        client.__enter__.return_value = client
        client.__exit__.side_effect = lambda *_: setattr(client, "is_open", False)
        made.append(client)
        return client

    monkeypatch.setattr(connections, "ClientInstance", open_client)
    yield made
    close_clients()


def options(port: int = 1) -> Options:
    return parse_options({"nameServer": f"h:{port}", "subscribe": "T"}, Use.BATCH_READ)


def test_tasks_of_a_process_share_a_client(opened: list[Mock]) -> None:
    for _ in range(3):
        with borrow_client(options()) as client:
            assert client is opened[0]
    assert len(opened) == 1
    close_clients()
    assert not opened[0].is_open


def test_tasks_with_another_account_get_another_client(opened: list[Mock], monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is read when the client is wanted: it changes with its source."""
    monkeypatch.setenv("ACCOUNT", "accessKey: me; secretKey: hush")
    given = {"nameServer": "h:1", "subscribe": "T"}
    by_source = parse_options({**given, "credentials": "env:ACCOUNT"}, Use.BATCH_READ)
    by_value = parse_options({**given, "accesskey": "me", "secretkey": "hush"}, Use.BATCH_READ)
    for _ in range(2):
        with borrow_client(by_source), borrow_client(by_value), borrow_client(options()):
            pass
    assert [one.credentials for one in opened] == [Credentials("me", "hush"), None]
    monkeypatch.setenv("ACCOUNT", "accessKey: me; secretKey: another")
    with borrow_client(by_source):
        assert opened[-1].credentials == Credentials("me", "another")
    monkeypatch.delenv("ACCOUNT")
    with pytest.raises(ConfigError, match="no variable ACCOUNT"), borrow_client(by_source):
        pass


def test_failed_client_is_not_reused(opened: list[Mock]) -> None:
    for error, is_kept in ((KeyError("of the user"), True), (ConnectError("refused"), False)):
        with pytest.raises(type(error)), borrow_client(options()):
            raise error
        assert opened[0].is_open == is_kept
    with borrow_client(options()):
        assert [one.is_open for one in opened] == [False, True]


def test_client_unused_for_minute_is_closed(opened: list[Mock], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now))
    with borrow_client(options(1)):
        pass
    now += 61
    with borrow_client(options(2)):
        assert [one.is_open for one in opened] == [False, True]
        now += 61
        with borrow_client(options(3)):
            assert opened[1].is_open  # in use


def test_client_of_parent_process_is_not_used(opened: list[Mock], monkeypatch: pytest.MonkeyPatch) -> None:
    with borrow_client(options()):
        pass
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with borrow_client(options()) as client:
        assert client is opened[1]
    assert len(opened) == 2


def test_options_of_tls_include_it() -> None:
    def tls(**given: str) -> bool | TlsConfig:
        return client_config(parse_options({"nameServer": "h:1", "subscribe": "T", **given}, Use.BATCH_READ)).tls

    assert tls() is False
    assert tls(tls="true") is True
    assert tls(tlsCa="ca.pem", tlsCert="c.pem", tlsKey="k.pem") == TlsConfig(ca="ca.pem", cert="c.pem", key="k.pem")
    assert tls(tlsVerify="none") == TlsConfig(verify="none")


LOST = ConnectError("127.0.0.1:1 refused")


def reading(limit_s: float) -> Retry:
    return Retry(limit_s, "reading X (option 'y')")


def fail_for_ever(retrying: Retry, pauses: list[float], took_s: float) -> None:
    while True:
        pauses.append(took_s)
        retrying.failed(LOST, took_s)


def test_pauses_grow_until_the_time_is_over(pauses: list[float]) -> None:
    words = r"reading X \(option 'y'\): given up after .*127\.0\.0\.1:1"
    with pytest.raises(RequestTimeoutError, match=words) as caught:
        fail_for_ever(reading(10), pauses, 0)
    assert caught.value.__cause__ is LOST
    assert pauses[1:12:2] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert 7 < sum(pauses) <= 10


def test_no_attempt_starts_too_late(pauses: list[float]) -> None:
    with pytest.raises(RequestTimeoutError, match="given up after"):
        fail_for_ever(reading(30), pauses, 5)  # as long as a connection may take
    assert 20 < sum(pauses) <= 30


def test_a_success_begins_anew(pauses: list[float]) -> None:
    retrying = reading(1)
    for _ in range(10):
        retrying.failed(LOST)
        retrying.success()
    assert pauses == [0.1] * 10


def test_busy_broker_sets_least_pause(pauses: list[float]) -> None:
    retrying = reading(10)
    for after_s in (0.7, 0.01, None):
        retrying.failed(SystemBusyError(int(ResponseCode.SYSTEM_BUSY), "", "", after_s))
    assert pauses == [0.7, 0.2, 0.4]


def test_lasting_error_is_raised_at_once(pauses: list[float]) -> None:
    error = NoPermissionError(int(ResponseCode.NO_PERMISSION), "no")
    with pytest.raises(NoPermissionError):
        reading(100).failed(error)
    assert pauses == []


PROGRAM = """
import logging, sys
import triomq.client  # adds a handler that drops everything, as libraries do
from triomq.spark.connections import show_warnings
{before}
show_warnings()
show_warnings()
logging.getLogger("triomq.spark.reading.loss").warning("messages lost queue=%s", "T@b:0")
{after}
logging.getLogger("triomq.spark.writing.writer").info("written")
"""


def stderr_of(before: str, after: str = "") -> str:
    program = PROGRAM.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    return done.stderr


def test_warnings_reach_stderr_once_without_logging_config() -> None:
    (line,) = stderr_of("").splitlines()
    assert line.endswith(" WARNING triomq.spark.reading.loss messages lost queue=T@b:0")


def test_throttling_keeps_all_warnings_of_lost_messages() -> None:
    loop = "for number in range(100): logging.getLogger('triomq.spark.reading.{}').warning('text %d', number)"
    lines = stderr_of("", f"{loop.format('loss')}\n{loop.format('driver')}").splitlines()
    assert sum("spark.reading.loss text" in line for line in lines) == 100
    assert sum("spark.reading.driver text" in line for line in lines) == 20


@pytest.mark.parametrize("logger", ["", "triomq"])
def test_configured_logging_is_kept(logger: str) -> None:
    before = f"logging.getLogger({logger!r}).addHandler(logging.StreamHandler(sys.stdout))"
    assert stderr_of(before) == ""
