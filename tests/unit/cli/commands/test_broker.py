from dataclasses import replace
from pathlib import Path

import pytest

from triomq.broker.addresses import Address
from triomq.broker.config import DEFAULT_NAMESRV, BrokerConfig, TlsConfig
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import BrokerOptions
from triomq.cli.commands.broker import make_config, parse_listener
from triomq.cli.errors import UsageError
from triomq.protocol.errors import ConfigError
from triomq.storage.config import Durability


def config(*words: str) -> BrokerConfig:
    options = parse(["broker", *words])
    assert isinstance(options, BrokerOptions)
    return make_config(options.settings)


def test_the_command_line_reaches_the_settings() -> None:
    made = config(
        *("--listen", "127.0.0.1:1", "--namesrv-listen", "[::1]:0", "--store", "/s", "--durability", "sync"),
        *("--advertise", "example.org", "--broker-name", "b", "--no-auto-create-topic", "--delay-levels", "10s 1m"),
        *("--acl", "~/accounts.yml", "--retention-hours", "1.5", "--memory-budget", "64MiB"),
        *("--brokers-from", "10.0.0.0/8", "--no-local-peers"),
    )
    assert (config().local_peers, made.local_peers) == (True, False)
    assert list(map(str, made.brokers_from)) == ["10.0.0.0/8"]
    (listener,) = made.listeners
    assert (listener.broker, listener.namesrv) == (Address("127.0.0.1", 1), Address("::1", 0))
    assert (listener.advertise, made.broker_name, made.auto_create_topic) == ("example.org", "b", False)
    assert (made.acl, made.memory_budget_bytes) == (Path.home() / "accounts.yml", 64 * 1024**2)
    assert (made.store.root, made.store.durability, made.store.retention_hours) == (Path("/s"), Durability.SYNC, 1.5)
    assert made.store.delay_levels.delays_ms == (10_000, 60_000)


def test_registering_broker_has_no_name_server_by_default() -> None:
    assert config().listeners[0].namesrv == DEFAULT_NAMESRV
    made = config("--register", "10.0.0.1:9876;[::1]:1")
    assert made.register == (Address("10.0.0.1", 9876), Address("::1", 1))
    assert made.listeners[0].namesrv is None
    wanted = Address("127.0.0.1", 3)
    assert config("--register", "a:1", "--namesrv-listen", str(wanted)).listeners[0].namesrv == wanted
    for text in ("", "a:1;", "a"):
        with pytest.raises(UsageError, match="--register"):
            config("--register", text)


def test_delay_levels_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        config("--delay-levels", "10x")


def test_the_default_store_is_in_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data/of/user")
    monkeypatch.setenv("HOME", "/home/of/user")
    assert config().store.root == Path("/data/of/user/triomq/store")
    assert config("--store", "~/s").store.root == Path("/home/of/user/s")


def test_listeners_add_up() -> None:
    made = config(
        *("--listener", "inside,namesrv=127.0.0.1:9877,broker=127.0.0.1:10912"),
        *("--listener", "outside,broker=127.0.0.1:10913,namesrv=127.0.0.1:9878,advertise=mq.example.org:443"),
    )
    assert [listener.name for listener in made.listeners] == ["default", "inside", "outside"]
    assert made.listeners[1].advertise is None
    assert made.listeners[2].advertise == "mq.example.org:443"
    assert made.listeners[2].broker == Address("127.0.0.1", 10913)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "inside",
        "inside,namesrv=127.0.0.1:1",
        "namesrv=127.0.0.1:1,broker=127.0.0.1:2",
        "inside,namesrv=127.0.0.1:1,broker=127.0.0.1:2,color=red",
        "inside,namesrv=127.0.0.1:1,broker",
    ],
)
def test_incomplete_listener_is_rejected_with_expected_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write NAME,namesrv=|is not HOST:PORT"):
        parse_listener(text)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--listen", "nonsense"), "--listen: 'nonsense' is not HOST:PORT"),
        (("--namesrv-listen", "127.0.0.1:99999"), "--namesrv-listen: "),
        (("--namesrv-listen", ""), "--namesrv-listen: '' is not HOST:PORT"),
        (("--listen", "0.0.0.0:10911"), "--insecure"),
        (("--advertise", "host:0"), "clients cannot connect to port 0"),
        (("--advertise", "::1"), "--advertise: "),
        (("--listener", "default,namesrv=127.0.0.1:1,broker=127.0.0.1:2"), "names must be unique"),
        (("--commit-log-file-size", "1"), "commit_log_file_size_bytes is 1"),
        (("--retention-bytes", "1MiB"), "must be at least 1073741824 (commit_log_file_size_bytes)"),
    ],
)
def test_impossible_settings_are_refused_with_the_option(words: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(*words)
    assert complaint in str(error.value)


def test_insecure_opens_the_network() -> None:
    assert config("--listen", "0.0.0.0:10911", "--insecure").insecure


def test_options_of_tls_reach_the_settings() -> None:
    files = ("--tls-cert", "c.pem", "--tls-key", "k.pem")
    ca = ("--tls-client-ca", "ca.pem")
    plain, optional = TlsConfig(cert=Path("c.pem"), key=Path("k.pem")), ("--tls-client-auth", "optional")
    asking = replace(plain, client_ca=Path("ca.pem"), client_auth="require")
    assert config().tls is None
    assert config("--tls-cert", "", "--tls-key", "").tls is not None  # its files cannot be read
    assert config("--tls", "disabled", *files).tls is None
    assert config(*files).tls == config("--tls", "permissive", *files).tls == plain
    assert config("--tls", "enforcing", *files, *ca).tls == replace(asking, enforcing=True)
    assert config(*files, *ca, *optional).tls == replace(asking, client_auth="optional")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--tls-cert c.pem", "TLS needs both a certificate and its private key: add --tls-key"),
        ("--tls-key k.pem", "TLS needs both a certificate and its private key: add --tls-cert"),
        ("--tls-client-ca ca.pem", "TLS needs both"),
        ("--tls enforcing", "TLS needs both a certificate and its private key: add --tls-cert and --tls-key"),
        ("--tls-cert c --tls-key k --tls-client-ca a --tls-client-auth none", "--tls-client-auth none: asks for no"),
        ("--tls-cert c --tls-key k --tls-client-auth require", "--tls-client-auth require: needs --tls-client-ca FILE"),
        ("--metrics nowhere", "--metrics: 'nowhere' is not HOST:PORT"),
        ("--admin-listen 9", "--admin-listen: '9' is not HOST:PORT"),
        ("--brokers-from a", "--brokers-from: 'a' is not ADDRESS"),
    ],
)
def test_an_error_names_the_option_that_is_wrong(words: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        config(*words.split())
    assert str(error.value).startswith(text)
