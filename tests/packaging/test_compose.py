"""The compose files against the published schema, the Dockerfile and our command line."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.packaging.dockerfile import ROOT, last
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import BrokerOptions, ClientOptions, DashboardOptions, NamesrvOptions
from triomq.cli.commands.broker import make_config
from triomq.dashboard.settings import parse_listen

#: Settings in which the brokers of a file differ.
_OWN: Final = ("broker_name", "role", "broker_id", "ha_listen", "brokers_from")
SCHEMA: Final = Path(__file__).parent / "compose-schema" / "compose-spec.json"


def broker_settings(words: list[str]) -> dict[str, Any]:
    options = parse(words)
    assert isinstance(options, BrokerOptions)
    return dict(options.settings)


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return loaded


@pytest.fixture
def compose() -> dict[str, Any]:
    return load("docker-compose.yml")


@pytest.fixture
def cluster() -> dict[str, Any]:
    """The services of the cluster."""
    return dict(load("docker-compose.cluster.yml")["services"])


@pytest.fixture(params=["cluster", "replica"])
def several(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The services of a file with a name server and two brokers."""
    return dict(load(f"docker-compose.{request.param}.yml")["services"])


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER)


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("docker-compose*.yml")))
def test_compose_file_follows_the_published_schema(name: str, validator: Draft7Validator) -> None:
    validator.validate(load(name))


def test_all_services_run_without_privileges(compose: dict[str, Any], several: dict[str, Any]) -> None:
    for service in (*compose["services"].values(), *several.values()):
        assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service


def test_network_needs_accounts_or_loopback_ports(compose: dict[str, Any]) -> None:
    plain = compose["services"]["broker"]
    guarded = load("docker-compose.secure.yml")["services"]["broker"]
    assert guarded["extends"] == {"file": "docker-compose.yml", "service": "broker"}
    open_to_all, with_accounts = (broker_settings(service["command"][1:]) for service in (plain, guarded))
    (volume,) = guarded["volumes"]
    mounted = volume.rpartition(":")[2]
    assert (open_to_all.pop("insecure"), open_to_all["advertise"]) == (True, "${TRIOMQ_ADVERTISE:-127.0.0.1}")
    assert open_to_all["local_peers"] is False
    assert with_accounts == {
        **open_to_all,
        "acl": f"{mounted}/plain_acl.yml",
        "tls": "enforcing",
        "tls_cert": f"{mounted}/server.pem",
        "tls_key": f"{mounted}/server.key",
    }
    assert broker_settings(last("CMD").words()[1:]) == {"root": open_to_all["root"]}
    servers = {"TRIOMQ_BROKER_NO_LOCAL_PEERS=true", "TRIOMQ_NAMESRV_NO_LOCAL_PEERS=true"}
    assert servers <= set(last("ENV").words())


def test_health_check_is_that_of_the_image(compose: dict[str, Any]) -> None:
    assert compose["services"]["broker"]["healthcheck"]["test"] == ["CMD", *last("HEALTHCHECK").words()]


def test_exposed_ports_are_published_on_loopback_by_default(
    compose: dict[str, Any],
) -> None:
    expected = [f"${{TRIOMQ_BIND:-127.0.0.1}}:{port}:{port}" for port in last("EXPOSE").words()]
    assert compose["services"]["broker"]["ports"] == expected


def test_dashboard_reaches_the_broker_by_the_network_of_the_file(compose: dict[str, Any]) -> None:
    dashboard = compose["services"]["dashboard"]
    options = parse(dashboard["command"][1:])
    assert isinstance(options, DashboardOptions)
    assert (options.namesrv, options.as_dialled) == ("broker:9876", True)  # the broker advertises another address
    assert options.listen is not None
    port = parse_listen(options.listen).port
    assert dashboard["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert dashboard["healthcheck"] == {"disable": True}  # that of the image asks for a name server


def test_store_outlives_the_container(compose: dict[str, Any]) -> None:
    (volume,) = compose["services"]["broker"]["volumes"]
    name, _, path = volume.partition(":")
    assert name in compose["volumes"]
    assert path == last("VOLUME").arguments


def test_brokers_register_and_publish_their_ports(several: dict[str, Any]) -> None:
    namesrv = several.pop("namesrv")
    name_server = parse(namesrv["command"][1:])
    assert isinstance(name_server, NamesrvOptions)
    assert len(several) == 2
    addresses = [service["networks"]["default"]["ipv4_address"] for service in several.values()]
    assert name_server.settings["brokers_from"] == ",".join(addresses)
    assert name_server.settings["local_peers"] is False
    assert name_server.settings["admin_listen"] == "0.0.0.0:9877"
    assert namesrv["ports"] == ["${TRIOMQ_BIND:-127.0.0.1}:9876:9876", "127.0.0.1:9877:9877"]
    for service in several.values():
        settings = broker_settings(service["command"][1:])
        port = int(settings.pop("listen").rpartition(":")[2])
        for field in _OWN:
            settings.pop(field, None)
        assert settings == {
            "insecure": True,
            "local_peers": False,
            "root": last("VOLUME").arguments,
            "register": f"namesrv:{name_server.settings['listen'].rpartition(':')[2]}",
            "advertise": "${TRIOMQ_ADVERTISE:-127.0.0.1}",
        }
        assert service["ports"] == [f"${{TRIOMQ_BIND:-127.0.0.1}}:{each}:{each}" for each in (port, port - 2)]


def test_servers_have_separate_stores_and_health_checks(several: dict[str, Any]) -> None:
    for name, service in several.items():
        assert service["volumes"] == [f"{name}:{last('VOLUME').arguments}"]
        _, program, *words = service["healthcheck"]["test"]
        options = parse(words)
        assert isinstance(options, ClientOptions)
        command = service["command"]
        listen = command[command.index("--admin-listen" if name == "namesrv" else "--listen") + 1]
        assert (program, options.namesrv) == ("triomq", listen.replace("0.0.0.0", "127.0.0.1"))


def test_brokers_of_cluster_have_different_names(cluster: dict[str, Any]) -> None:
    del cluster["namesrv"]
    assert {name: broker_settings(each["command"][1:])["broker_name"] for name, each in cluster.items()} == {
        name: name for name in cluster
    }


def test_slave_and_master_are_one_broker() -> None:
    services = load("docker-compose.replica.yml")["services"]
    given = [broker_settings(services[name]["command"][1:]) for name in ("master", "slave")]
    for settings, other in zip(given, ("slave", "master"), strict=True):
        assert settings.pop("brokers_from") == services[other]["networks"]["default"]["ipv4_address"]
        settings["advertise"] = "127.0.0.1"
    master, slave = map(make_config, given)
    assert (master.role, master.broker_id, slave.role, slave.broker_id) == ("sync-master", 0, "slave", 1)
    assert (slave.broker_name, slave.register, slave.ha_master) == (master.broker_name, master.register, None)
    assert master.ha_listen is not None
    assert slave.ha_listen == master.ha_listen  # for the time after a promotion
    assert not any(str(master.ha_listen.port) in port for each in services.values() for port in each["ports"])
