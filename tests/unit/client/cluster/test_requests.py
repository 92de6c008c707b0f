import pytest

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    NameServerError,
)


async def test_failover_name_server_is_kept_after_it_answers(
    fake_broker: FakeBroker, make_broker: BrokerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    other = await make_broker("broker-b")
    other.add_topic("Topic")
    async with ClientInstance([fake_broker.address, other.address]) as instance:
        assert (await instance.routes.topic_route("Topic")).broker_datas[0].broker_name == "broker-a"
        await fake_broker.stop()

        assert (await instance.routes.topic_route("Topic", refresh=True)).broker_datas[0].broker_name == "broker-b"
        await fake_broker.restart()
        assert (await instance.routes.topic_route("Topic", refresh=True)).broker_datas[0].broker_name == "broker-b"
        assert instance.requests.name_servers.current == other.address
    assert "name server failed" in caplog.text


async def test_unreachable_name_servers_are_each_named_with_reason(
    fake_broker: FakeBroker, make_broker: BrokerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    other = await make_broker("broker-b")
    await other.stop()
    fake_broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _command: None)
    config = ClientConfig(api_timeout_s=0.05)
    async with ClientInstance(f"{fake_broker.address};{other.address}", config) as instance:
        with pytest.raises(NameServerError) as caught:
            await instance.routes.topic_route("Topic")
    assert f"no answer from {fake_broker.address} in time" in str(caught.value)
    assert f"cannot connect to {other.address}: Connection refused; it was given as name server" in str(caught.value)
    assert caplog.text.count("name server failed") == 1  # the last one's failure is the error


async def test_the_only_name_server_fails_with_an_error_and_no_log(
    fake_broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await fake_broker.stop()
    with pytest.raises(NameServerError):
        async with ClientInstance(fake_broker.address):
            pass
    assert not caplog.records


async def test_a_name_server_that_refuses_is_a_response_error(fake_broker: FakeBroker) -> None:
    fake_broker.fail(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.SYSTEM_ERROR, "no")
    async with ClientInstance(fake_broker.address) as instance:
        with pytest.raises(BrokerResponseError):
            await instance.routes.topic_route("Topic")
