import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.connection.pool import dial
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ConnectError


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


async def test_nonsense_address_of_a_route_cannot_be_dialled(fake_broker: FakeBroker) -> None:
    fake_broker.routes["Topic"].broker_datas[0].broker_addrs[0] = "null"
    async with ClientInstance(fake_broker.address, ClientConfig(advertise="as-dialled")) as instance:
        await instance.routes.topic_route("Topic")
        with pytest.raises(ConnectError, match="'null': must be host:port"):
            await instance.requests.invoke("null", instance.requests.command(RequestCode.HEART_BEAT))


async def test_closed_connection_is_replaced_at_once(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        command = instance.requests.command(RequestCode.HEART_BEAT)
        await instance.requests.invoke(fake_broker.address, command)
        connection = instance.requests.connections.get(fake_broker.address)
        assert connection is not None
        connection.close("a test")
        assert (await instance.requests.invoke(fake_broker.address, command)).code == 0
        assert instance.requests.connections.addresses() == {fake_broker.address}


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "ho\u2488st", "\udcff"], ids=["empty", "long", "dot", "surrogate"])
async def test_impossible_host_name_cannot_be_dialled(host: str) -> None:
    with pytest.raises(ConnectError, match=f"cannot connect to {host}:1: "):
        await dial(f"{host}:1", 3)


async def test_dialling_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    async def hang(*_arguments: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    with pytest.raises(ConnectError, match="no connection within 3 s"):
        await dial("host:1", 3)
    assert trio.current_time() == pytest.approx(3)
