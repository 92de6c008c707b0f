"""A name server without a broker: leases, the loss of a connection, its end."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
import trio
from trio.testing import MockClock

from tests.integration.broker_wire import Wire, broker_port, connected, namesrv_port, wait_for
from tests.integration.broker_wire import running as running_broker
from triomq.broker.addresses import Address, parse_networks
from triomq.broker.config import NameServerConfig
from triomq.broker.name_server import NameServer, open_name_server
from triomq.protocol.bodies.route import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
    registration_crc,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import StoreLockedError
from triomq.protocol.wire.command import RemotingCommand

BROKER: Final = {
    "brokerName": "a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C",
    "brokerId": 0,
    "haServerAddr": "10.0.0.1:10912",
}
KEY_VALUE: Final = {"namespace": "N", "key": "K", "value": "V"}
VERSION: Final = DataVersion(timestamp=17, counter=1)
BODY: Final = RegisterBrokerBody(TopicConfigSerializeWrapper({"T": TopicConfig("T", 4, 3)}, VERSION)).encode()


@asynccontextmanager
async def running(root: Path, **settings: Any) -> AsyncGenerator[NameServer]:
    config = NameServerConfig(root=root, **{"listen": Address("127.0.0.1", 0), **settings})
    with trio.fail_after(600):
        async with open_name_server(config) as server:
            yield server


async def register(wire: Wire, **fields: Any) -> RemotingCommand:
    return await wire.ask(RequestCode.REGISTER_BROKER, {**BROKER, "bodyCrc32": registration_crc(BODY), **fields}, BODY)


async def route(wire: Wire, topic: str = "T") -> RemotingCommand:
    return await wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


async def put(wire: Wire, **fields: str) -> None:
    assert (await wire.ask(RequestCode.PUT_KV_CONFIG, fields)).code == ResponseCode.SUCCESS


async def test_broker_is_routed_from_registration_to_shutdown(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address.port) as client:
        assert (await route(client)).code == ResponseCode.TOPIC_NOT_EXIST
        async with connected(server.address.port) as broker:
            answer = await register(broker)
            assert (answer.code, answer.ext_fields, answer.body) == (ResponseCode.SUCCESS, {}, b"")
            found = TopicRouteData.decode((await route(client)).body)
            assert found.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
            assert (found.queue_datas[0].read_queue_nums, found.queue_datas[0].write_queue_nums) == (4, 3)
            assert (await broker.ask(RequestCode.UNREGISTER_BROKER, BROKER)).code == ResponseCode.SUCCESS
            assert (await route(client)).code == ResponseCode.TOPIC_NOT_EXIST
            await register(broker)
            slave = await register(broker, brokerId=1, brokerAddr="10.0.0.2:10911")
            assert slave.ext_fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
        await wait_for(lambda: not server.routes.topics())  # the connection ended
        assert (await route(client)).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("brokers_from", ["", "127.0.0.0/8"])
async def test_without_local_peers_loopback_has_no_rights(tmp_path: Path, brokers_from: str) -> None:
    settings: dict[str, Any] = {
        "local_peers": False,
        "brokers_from": parse_networks(brokers_from) if brokers_from else (),
    }
    registers = ResponseCode.SUCCESS if brokers_from else ResponseCode.NO_PERMISSION
    async with (
        running(tmp_path / "namesrv", admin_listen=Address("127.0.0.1", 0), **settings) as server,
        running_broker(tmp_path / "broker", **settings) as broker,
    ):
        assert server.admin_address is not None
        for port in (server.address.port, namesrv_port(broker), broker_port(broker)):
            async with connected(port) as wire:
                assert (await register(wire)).code == registers
                refused = await wire.ask(RequestCode.PUT_KV_CONFIG, KEY_VALUE)
                assert (refused.code, "--admin-listen" in str(refused.remark)) == (ResponseCode.NO_PERMISSION, True)
        async with connected(server.admin_address.port) as wire:
            await put(wire, **KEY_VALUE)


async def test_a_damaged_registration_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address.port) as broker:
        answer = await register(broker, bodyCrc32=1)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
        answer = await register(broker, compressed="true")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert not server.routes.topics()


async def test_lease_expires_after_two_silent_minutes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, idle_timeout_s=1000.0) as server, connected(server.address.port) as broker:
        await register(broker)
        for _ in range(5):
            await trio.sleep(60)
            asked = await broker.ask(RequestCode.QUERY_DATA_VERSION, BROKER, VERSION.encode())
            assert (asked.ext_fields, asked.body) == ({"changed": "false"}, VERSION.encode())
        changed = await broker.ask(RequestCode.QUERY_DATA_VERSION, BROKER, DataVersion(18, 1).encode())
        assert changed.ext_fields == {"changed": "true"}
        assert server.routes.topics()
        await trio.sleep(131)
        assert not server.routes.topics()
        assert await broker.is_closed_by_broker()


async def test_order_topics_reach_brokers_and_clients(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address.port) as wire:
        await put(wire, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
        assert (await register(wire)).body == b'{"table":{"T":"a:4"}}'
        assert "orderTopicConf" not in orjson.loads((await route(wire)).body)
        change = b"orderMessageEnable=true\n"
        assert (await wire.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change)).code == ResponseCode.SUCCESS
        assert orjson.loads((await route(wire)).body)["orderTopicConf"] == "a:4"
        told = await wire.ask(RequestCode.GET_NAMESRV_CONFIG)
        assert b"orderMessageEnable=true" in bytes(told.body)
        assert (await wire.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=bytes(told.body))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (b"kvConfigPath=/tmp/x", ResponseCode.NO_PERMISSION),
        (b"rocketmqHome=/x", ResponseCode.NO_PERMISSION),
        (b"orderMessageEnable=maybe", ResponseCode.SYSTEM_ERROR),
        (b"a=\xff", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_other_settings_cannot_be_changed(tmp_path: Path, change: bytes, code: ResponseCode) -> None:
    async with running(tmp_path) as server, connected(server.address.port) as wire:
        before = (await wire.ask(RequestCode.GET_NAMESRV_CONFIG)).body
        assert (await wire.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change)).code == code
        assert (await wire.ask(RequestCode.GET_NAMESRV_CONFIG)).body == before


def numbers(answer: RemotingCommand) -> Mapping[str, str]:
    assert answer.code == ResponseCode.SUCCESS
    return answer.ext_fields


async def test_write_permission_is_wiped_and_restored_per_broker(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address.port) as wire:
        await register(wire)
        for code, counted, perm in (
            (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"wipeTopicCount": "1"}, 4),
            (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"addTopicCount": "1"}, 6),
        ):
            assert numbers(await wire.ask(code, {"brokerName": "a"})) == counted
            assert orjson.loads((await route(wire)).body)["queueDatas"][0]["perm"] == perm
        assert (
            numbers(await wire.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}))["wipeTopicCount"] == "0"
        )


@pytest.mark.parametrize(
    ("code", "listed"),
    [
        (RequestCode.GET_UNIT_TOPIC_LIST, ["unit", "both"]),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, ["subscribed", "both"]),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ["subscribed"]),
    ],
)
async def test_unit_topics_are_listed(tmp_path: Path, code: int, listed: list[str]) -> None:
    flags = {"none": 0, "unit": 1, "subscribed": 2, "both": 3}
    topics = {name: TopicConfig(name, topic_sys_flag=flag) for name, flag in flags.items()}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics, VERSION)).encode()
    async with running(tmp_path) as server, connected(server.address.port) as wire:
        await wire.ask(RequestCode.REGISTER_BROKER, BROKER, body)
        assert orjson.loads((await wire.ask(code)).body)["topicList"] == listed


async def test_name_server_keeps_its_key_value_table(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(server.address.port) as wire:
        await put(wire, namespace="N", key="k", value="v")
        with pytest.raises(StoreLockedError):
            async with running(tmp_path):
                raise AssertionError
    async with running(tmp_path) as server, connected(server.address.port) as wire:
        assert numbers(await wire.ask(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"})) == {"value": "v"}
