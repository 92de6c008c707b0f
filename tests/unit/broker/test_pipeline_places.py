"""From where the name server is changed and brokers register, and where administration is served."""

from typing import Final

import pytest

from tests.commands import make_command
from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.addresses import Address, parse_networks
from triomq.broker.network.connection import Port
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.requests.catalogue import CATALOGUE

LOCAL: Final = "127.0.0.1:50001"
MEMBER: Final = "10.0.0.7:50001"
STRANGER: Final = "192.0.2.9:50001"
FIELDS: Final = {
    "brokerName": "b", "brokerAddr": "10.0.0.7:10911", "clusterName": "C", "brokerId": "0", "haServerAddr": "x:1",
    "topic": "T", "namespace": "N", "key": "K", "value": "V",
}  # fmt: skip
BODY: Final = RegisterBrokerBody(TopicConfigSerializeWrapper({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1))).encode()
FROM_BROKERS: Final = {103, 104, 322}
NAMESRV_CHANGES: Final = (100, 102, 205, 216, 318, 327)
#: What producers, consumers and transactions need, and what any broker may ask.
CLIENTS: Final = {
    10, 310, 320, 324, 325, 11, 361, 370, 12, 14, 15, 29, 30, 31, 32, 34, 35, 36, 37, 38, 41, 42, 46, 105, 31002,
}  # fmt: skip


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    return make_broker(brokers_from=parse_networks("10.0.0.0/24, ::1"))


def ask(broker: Broker, address: str, port: Port, code: int) -> tuple[int, str]:
    body = BODY if code == RequestCode.REGISTER_BROKER else b""
    return Peer(broker, address, port).answer(make_command(code, 7, 0, dict(FIELDS), body))


def test_brokers_register_from_local_and_listed_addresses(broker: Broker) -> None:
    for port in Port:
        for code in sorted(FROM_BROKERS):
            assert ask(broker, LOCAL, port, code)[0] != ResponseCode.NO_PERMISSION
            assert ask(broker, MEMBER, port, code)[0] != ResponseCode.NO_PERMISSION
            told = f"request {code} is for brokers, and 192.0.2.9 is not in --brokers-from"
            assert ask(broker, STRANGER, port, code) == (ResponseCode.NO_PERMISSION, told)


def test_only_its_own_address_ends_a_registration(broker: Broker) -> None:
    port = Port.NAMESRV
    ask(broker, MEMBER, port, RequestCode.REGISTER_BROKER)
    for address in ("10.0.0.8:50001", LOCAL):
        assert "from another host, 10.0.0.7" in ask(broker, address, port, RequestCode.REGISTER_BROKER)[1]
    code, remark = ask(broker, "10.0.0.8:50001", port, RequestCode.UNREGISTER_BROKER)
    assert (code, "registration from 10.0.0.7" in remark) == (ResponseCode.NO_PERMISSION, True)
    assert broker.routes.is_registered("T")
    for address in (MEMBER, LOCAL):
        ask(broker, MEMBER, port, RequestCode.REGISTER_BROKER)
        assert ask(broker, address, port, RequestCode.UNREGISTER_BROKER)[0] == ResponseCode.SUCCESS
        assert not broker.routes.is_registered("T")


def test_name_server_changes_only_locally(broker: Broker) -> None:
    for port in (Port.BROKER, Port.VIP, Port.NAMESRV):
        ask(broker, MEMBER, port, RequestCode.REGISTER_BROKER)
        for code in NAMESRV_CHANGES:
            for address in (MEMBER, STRANGER):
                told = f"request {code} changes the name server: allowed on its machine, or at its --admin-listen"
                assert ask(broker, address, port, code) == (ResponseCode.NO_PERMISSION, told)
        for code in NAMESRV_CHANGES:
            assert ask(broker, LOCAL, port, code)[0] == ResponseCode.SUCCESS
        assert ask(broker, STRANGER, port, 216)[0] == ResponseCode.SUCCESS  # nothing is left to delete


def test_every_peer_may_read_routes(broker: Broker) -> None:
    broker.topics.put(TopicConfig("T", 4, 4))
    for code in (105, 106, 206, 224, 304):
        assert ask(broker, STRANGER, Port.NAMESRV, code)[0] != ResponseCode.NO_PERMISSION


def test_administration_is_served_at_its_listener_only(make_broker: MakeBroker) -> None:
    broker = make_broker(admin_listen=Address("127.0.0.1", 0))
    refused = {
        code
        for port in (Port.BROKER, Port.VIP, Port.NAMESRV)
        for code in broker.pipeline.served
        if "takes only at its --admin-listen" in ask(broker, LOCAL, port, code)[1]
    }
    assert refused == {*broker.pipeline.served} - CLIENTS - FROM_BROKERS
    assert refused == {code for code in broker.pipeline.served if CATALOGUE[code].is_administration}
    for code in broker.pipeline.served:
        assert "--admin-listen" not in ask(broker, STRANGER, Port.ADMIN, code)[1]


def test_listed_slave_copies_tables_despite_administration_listener(make_broker: MakeBroker) -> None:
    broker = make_broker(admin_listen=Address("127.0.0.1", 0), brokers_from=parse_networks("10.0.0.0/24"))
    served = {
        (address, code)
        for address in (MEMBER, LOCAL)
        for code in broker.pipeline.served
        if CATALOGUE[code].is_administration and "--admin-listen" not in ask(broker, address, Port.BROKER, code)[1]
    }
    assert served == {(MEMBER, code) for code in (21, 43, 45, 201, 31_003)}
