"""The separate listener for administration, and the audit, of both servers over sockets."""

import json
import socket
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.broker_wire import broker_port, connected, namesrv_port, request, running
from tests.integration.cli_tools import ok, triomq
from tests.processes import start_name_server, start_triomq
from triomq.broker.addresses import Address
from triomq.broker.config import NameServerConfig
from triomq.broker.name_server import open_name_server
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode

FREE: Final = "127.0.0.1:0"


def audited(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_administration_is_refused_elsewhere_and_noted(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    admin_listen = Address("127.0.0.1", 0)
    async with running(tmp_path / "store", admin_listen=admin_listen, audit=audit) as broker:
        assert broker.admin_address is not None
        async with connected(broker_port(broker)) as wire, connected(broker.admin_address.port) as admin:
            change = {"topic": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
            refused = await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**change, "defaultTopic": "TBW102"})
            assert (refused.code, "--admin-listen" in str(refused.remark)) == (ResponseCode.NO_PERMISSION, True)
            await wire.send(request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, flag=CommandFlag.ONEWAY))
            await wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})  # answered after it
            done = await admin.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**change, "defaultTopic": "TBW102"})
            assert done.code == ResponseCode.SUCCESS
            assert (await wire.put("T")).code == ResponseCode.SUCCESS
        async with connected(namesrv_port(broker)) as namesrv:
            assert (await namesrv.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == ResponseCode.NO_PERMISSION
            assert (await namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == ResponseCode.SUCCESS
    found = [(each["event"], each["request"], each["resource"], each["allowed"]) for each in audited(audit)]
    assert found == [
        ("denied", "UPDATE_AND_CREATE_TOPIC", {"topic": "T"}, False),
        ("denied", "DELETE_TOPIC_IN_BROKER", {"topic": "T"}, False),
        ("administration", "UPDATE_AND_CREATE_TOPIC", {"topic": "T"}, True),
        ("denied", "GET_BROKER_CLUSTER_INFO", {}, False),
    ]


def test_tools_work_at_broker_admin_listener(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with start_triomq(tmp_path, "--admin-listen", FREE, "--audit", str(audit)) as broker:
        assert broker.admin not in (None, broker.broker, broker.namesrv)
        ok("topic", "create", "orders", namesrv=broker.admin)
        (told,) = json.loads(ok("ping", "--json", namesrv=broker.admin))["brokers"]
        assert told["address"] == broker.admin
        assert b"--admin-listen" in triomq("topic", "delete", "orders", namesrv=broker.namesrv).stderr
        ok("topic", "delete", "orders", namesrv=broker.admin)
    assert {"UPDATE_AND_CREATE_TOPIC", "DELETE_TOPIC_IN_BROKER"} <= {each["request"] for each in audited(audit)}


def test_tools_work_at_name_server_admin_listener(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with start_name_server(
        tmp_path, "--store", str(tmp_path / "s"), "--admin-listen", FREE, "--audit", str(audit)
    ) as server:
        assert ok("topic", "list", "--json", namesrv=server.admin) == ""
        assert b"--admin-listen" in triomq("topic", "list", namesrv=server.namesrv).stderr
    assert [(each["event"], each["request"]) for each in audited(audit)] == [
        ("administration", "GET_ALL_TOPIC_LIST_FROM_NAMESERVER"),
        ("administration", "GET_BROKER_CLUSTER_INFO"),
        ("denied", "GET_ALL_TOPIC_LIST_FROM_NAMESERVER"),
    ]


def own_addresses() -> list[str]:
    """Addresses of this machine that are not loopback; a socket that is only connected sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [str(sock.getsockname()[0])]


async def test_peer_with_server_address_counts_as_local(tmp_path: Path) -> None:
    for host in own_addresses() or pytest.skip("this machine has loopback only"):
        config = NameServerConfig(root=tmp_path, listen=Address(host, 0), insecure=True)
        async with open_name_server(config) as server:
            async with connected(server.address.port, host) as wire:
                put = await wire.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "K", "value": "V"})
                assert put.code == ResponseCode.SUCCESS
