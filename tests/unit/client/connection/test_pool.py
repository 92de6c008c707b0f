import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import (
    ClientClosedError,
    ConnectError,
)


async def test_unreachable_broker_error_names_setting_to_change(
    fake_broker: FakeBroker, make_broker: BrokerFactory
) -> None:
    broker = await make_broker("broker-b")
    broker.add_topic("Topic")
    fake_broker.routes["Topic"] = broker.routes["Topic"]
    await broker.stop()
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        with pytest.raises(ConnectError) as caught:
            await instance.requests.invoke(broker.address, instance.requests.command(RequestCode.HEART_BEAT))
    text = str(caught.value)
    assert f"cannot connect to {broker.address}: Connection refused" in text
    assert f"broker 'broker-b' advertises this address through name server {fake_broker.address}" in text
    assert "--advertise HOST" in text
    assert 'advertise="as-dialled"' in text


async def test_as_dialled_reaches_broker_at_name_server_host(fake_broker: FakeBroker) -> None:
    port = fake_broker.address.rpartition(":")[2]
    fake_broker.routes["Topic"].broker_datas[0].broker_addrs[0] = f"172.17.0.3:{port}"
    async with ClientInstance(fake_broker.address, ClientConfig(advertise="as-dialled")) as instance:
        await instance.routes.topic_route("Topic")
        address = instance.brokers.find("broker-a")
        assert address == f"172.17.0.3:{port}"
        assert (await instance.requests.invoke(address, instance.requests.command(RequestCode.HEART_BEAT))).code == 0
        with pytest.raises(ConnectError, match=r'advertises 172\.17\.0\.3:1 .* because of advertise="as-dialled"'):
            await instance.requests.invoke("172.17.0.3:1", instance.requests.command(RequestCode.HEART_BEAT))


async def test_a_nonsense_address_in_a_route_is_a_connect_error(fake_broker: FakeBroker) -> None:
    fake_broker.routes["Topic"].broker_datas[0].broker_addrs[0] = "null"
    async with ClientInstance(fake_broker.address, ClientConfig(advertise="as-dialled")) as instance:
        await instance.routes.topic_route("Topic")
        with pytest.raises(ConnectError, match="'null': must be host:port"):
            await instance.requests.invoke("null", instance.requests.command(RequestCode.HEART_BEAT))


async def test_request_times_out_while_connecting(
    fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def hang(*_arguments: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    async with ClientInstance(fake_broker.address, ClientConfig(connect=False)) as instance:
        with pytest.raises(ConnectError, match="no connection in time; it was given as name server"):
            await instance.requests.invoke(fake_broker.address, instance.requests.command(RequestCode.HEART_BEAT), 1.0)


async def test_an_unknown_address_is_questioned_first(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        with pytest.raises(ConnectError, match="refused; is a broker running there"):
            await instance.requests.invoke("127.0.0.1:1", instance.requests.command(RequestCode.HEART_BEAT))


async def test_a_closed_connection_is_replaced_before_it_is_gone(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        command = instance.requests.command(RequestCode.HEART_BEAT)
        await instance.requests.invoke(fake_broker.address, command)
        connection = instance.requests.connections.get(fake_broker.address)
        assert connection is not None
        connection.close("a test")
        assert (await instance.requests.invoke(fake_broker.address, command)).code == 0
        assert instance.requests.connections.addresses() == {fake_broker.address}


async def test_a_producer_of_a_left_instance_is_told_so(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        table = instance.requests.connections
        connection = table.get(fake_broker.address)
        assert await table.connect(fake_broker.address, trio.current_time() + 3) is connection
    with pytest.raises(ClientClosedError):
        await table.connect(fake_broker.address, trio.current_time() + 3)
