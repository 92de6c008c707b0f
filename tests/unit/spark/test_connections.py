"""The clients that a worker process keeps."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from triomq.client.config import ClientConfig, TlsConfig
from triomq.protocol.errors import ConfigError, ConnectError
from triomq.protocol.wire.signing import Credentials
from triomq.spark import connections
from triomq.spark.connections import borrow_client, client_config, close_clients
from triomq.spark.options.options import Options, Use, parse_options


class FakeShared:
    """Replaces a client instance of ``client.sync``."""

    opened: list["FakeShared"] = []  # noqa: RUF012  # emptied for each test

    def __init__(self, name_server: str, config: ClientConfig) -> None:
        self.name_server = name_server
        self.credentials = config.credentials
        self.is_open = False

    def __enter__(self) -> Any:
        self.is_open = True
        self.opened.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeShared]]:
    FakeShared.opened.clear()
    monkeypatch.setattr(connections, "ClientInstance", FakeShared)
    yield FakeShared.opened
    close_clients()


def options(port: int = 1) -> Options:
    return parse_options({"nameServer": f"h:{port}", "subscribe": "T"}, Use.BATCH_READ)


def test_tasks_of_a_process_share_a_client(opened: list[FakeShared]) -> None:
    for _ in range(3):
        with borrow_client(options()) as client:
            assert cast("object", client) is opened[0]
    assert len(opened) == 1
    close_clients()
    assert not opened[0].is_open


def test_tasks_with_another_account_get_another_client(
    opened: list[FakeShared], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_failed_client_is_not_reused(opened: list[FakeShared]) -> None:
    with pytest.raises(ConnectError), borrow_client(options()):
        raise ConnectError("refused")
    assert not opened[0].is_open
    with borrow_client(options()):
        assert [one.is_open for one in opened] == [False, True]


def test_error_of_user_keeps_client(opened: list[FakeShared]) -> None:
    with pytest.raises(KeyError), borrow_client(options()):
        raise KeyError
    assert opened[0].is_open


def test_client_unused_for_minute_is_closed(opened: list[FakeShared], monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_client_of_parent_process_is_not_used(opened: list[FakeShared], monkeypatch: pytest.MonkeyPatch) -> None:
    with borrow_client(options()):
        pass
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with borrow_client(options()) as client:
        assert cast("object", client) is opened[1]
    assert len(opened) == 2


def test_options_of_tls_include_it() -> None:
    def tls(**given: str) -> bool | TlsConfig:
        return client_config(parse_options({"nameServer": "h:1", "subscribe": "T", **given}, Use.BATCH_READ)).tls

    assert tls() is False
    assert tls(tls="true") is True
    assert tls(tlsCa="ca.pem", tlsCert="c.pem", tlsKey="k.pem") == TlsConfig(ca="ca.pem", cert="c.pem", key="k.pem")
    assert tls(tlsVerify="none") == TlsConfig(verify="none")
    with pytest.raises(ConfigError, match="tlsCert and tlsKey belong together"):
        tls(tlsCert="c.pem")
