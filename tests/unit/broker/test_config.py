"""Settings that would open the broker to a network, or cannot work, are refused at start."""

from pathlib import Path
from typing import Any

import pytest

from triomq.broker.addresses import Address, parse_networks
from triomq.broker.config import BrokerConfig, Listener, NameServerConfig, default_store_root
from triomq.protocol.errors import ConfigError
from triomq.storage.config import StoreConfig


def config(tmp_path: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(store=StoreConfig(root=tmp_path), **settings)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("listeners", (), "at least one listener"),
        ("listeners", (Listener(advertise=""),), "advertised address"),
        ("listeners", (Listener(advertise="x" * 256),), "advertised address"),
        ("idle_timeout_s", 0, "idle_timeout_s"),
        ("persist_delay_offsets_interval_s", 0, "persist_delay_offsets_interval_s"),
        ("max_client_subscriptions", 0, "max_client_subscriptions"),
    ],
)
def test_impossible_value_is_rejected_by_name(tmp_path: Path, name: str, value: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config(tmp_path, **{name: value})


@pytest.mark.parametrize("port", ["broker", "namesrv"])
@pytest.mark.parametrize("protection", [{"acl": Path("plain_acl.yml")}, {"insecure": True}])
def test_listening_beyond_loopback_needs_protection(tmp_path: Path, port: str, protection: dict[str, Any]) -> None:
    open_listener = Listener(**{port: Address("0.0.0.0", 0)})  # type: ignore[arg-type]  # either of the two ports
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:0 .*--insecure"):
        config(tmp_path, listeners=(open_listener,))
    assert config(tmp_path, listeners=(open_listener,), **protection).listeners == (open_listener,)


def test_the_store_is_below_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store_root() == tmp_path / "triomq" / "store"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_store_root() == tmp_path / ".local" / "share" / "triomq" / "store"


@pytest.mark.parametrize("protection", [{"acl": Path("plain_acl.yml")}, {"insecure": True}])
def test_admin_listener_beyond_loopback_needs_protection_too(tmp_path: Path, protection: dict[str, Any]) -> None:
    admin = Address("0.0.0.0", 0)
    with pytest.raises(ConfigError, match="--insecure"):
        config(tmp_path, admin_listen=admin)
    with pytest.raises(ConfigError, match="--insecure"):
        NameServerConfig(root=tmp_path, admin_listen=admin)
    assert config(tmp_path, admin_listen=admin, **protection).admin_listen


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("mark", ["file", "variable", ""])
@pytest.mark.parametrize("local_peers", [True, False])
def test_local_peers_are_a_risk_behind_forwarded_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, mark: str, local_peers: bool
) -> None:
    monkeypatch.setattr("triomq.broker.config._CONTAINER_MARKS", (tmp_path if mark == "file" else tmp_path / "none",))
    monkeypatch.setenv("container", "podman" if mark == "variable" else "")
    listen = Address(host, 0)
    settings: dict[str, Any] = {"insecure": True, "local_peers": local_peers}
    listener = Listener(broker=listen, namesrv=None)
    name_server = NameServerConfig(root=tmp_path, listen=listen, **settings)
    for made in (config(tmp_path, listeners=(listener,), **settings), name_server):
        assert made.may_misjudge_peers is (host == "0.0.0.0" and mark != "" and local_peers)


def test_open_addresses_are_reported(tmp_path: Path) -> None:
    listener = Listener(broker=Address("0.0.0.0", 10911), namesrv=Address("10.0.0.5", 9876))
    admin, inside = Address("::", 10912), Address("127.0.0.1", 10912)

    def told(**settings: Any) -> str:
        return config(tmp_path, listeners=(listener,), insecure=True, **settings).exposure

    assert told() == "messages and administration at 0.0.0.0:10911; routes at 10.0.0.5:9876"
    assert told(admin_listen=inside) == "messages at 0.0.0.0:10911; routes at 10.0.0.5:9876"
    assert told(admin_listen=admin).endswith("; routes at 10.0.0.5:9876; administration at [::]:10912")
    assert told(brokers_from=parse_networks("10.0.0.0/24")).endswith("; registration for brokers from 10.0.0.0/24")
    assert told(acl=tmp_path / "plain_acl.yml") == config(tmp_path).exposure == ""
    slaves = {"acl": tmp_path / "plain_acl.yml", "ha_listen": admin}
    assert told(**slaves) == "copies of the log at [::]:10912"
    assert told(**slaves, brokers_from=parse_networks("10.0.0.0/24")) == ""
    assert NameServerConfig(root=tmp_path).exposure == ""
    name_server = NameServerConfig(root=tmp_path, listen=Address("0.0.0.0", 9876), admin_listen=inside, insecure=True)
    assert name_server.exposure == "routes at 0.0.0.0:9876"
