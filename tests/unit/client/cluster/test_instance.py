import pytest
import trio

from tests.unit.client.fake_broker import FakeBroker
from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.config import ClientConfig
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ClientClosedError, ClientError, ConfigError, ConnectionLostError

ALONE = ClientConfig(connect=False)


async def test_opaques_start_again_after_the_largest_int32() -> None:
    instance = ClientInstance("127.0.0.1:1")
    instance.requests._opaques = iter(range(2**31 - 1, 2**31 + 1))  # type: ignore[assignment]  # any counter
    assert [instance.requests.next_opaque(), instance.requests.next_opaque()] == [2**31 - 1, 0]


async def test_close_fails_pending_requests_and_rejects_new_ones(fake_broker: FakeBroker) -> None:
    fake_broker.on(RequestCode.HEART_BEAT, lambda _command: None)
    errors: list[ClientError] = []

    async def ask(instance: ClientInstance) -> None:
        try:
            await instance.requests.invoke(fake_broker.address, instance.requests.command(RequestCode.HEART_BEAT))
        except ClientError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        async with ClientInstance(fake_broker.address) as instance:
            nursery.start_soon(ask, instance)
            await fake_broker.wait_for(RequestCode.HEART_BEAT)
    assert [type(error) for error in errors] == [ConnectionLostError]
    for attempt in (
        lambda: instance.requests.invoke(fake_broker.address, instance.requests.command(RequestCode.HEART_BEAT)),
        lambda: instance.routes.topic_route("Topic"),
        lambda: instance.requests.oneway(fake_broker.address, instance.requests.command(RequestCode.HEART_BEAT)),
    ):
        with pytest.raises(ClientClosedError, match="is closed"):
            await attempt()
    with pytest.raises(ClientError, match="entered once only"):
        async with instance:
            pass


async def test_an_instance_is_borrowed_or_made() -> None:
    async with ClientInstance("127.0.0.1:1", ALONE) as given, use_instance(None, None, given) as borrowed:
        assert borrowed is given
    async with use_instance("127.0.0.1:1", ALONE, None) as own:
        assert own.client_id
    for namesrv, config, instance in ((None, None, None), ("a:1", None, own), (None, ClientConfig(), own)):
        with pytest.raises(ConfigError):
            async with use_instance(namesrv, config, instance):
                pass


async def test_client_ip_without_network_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("triomq.client.cluster.instance.socket.socket", fail)
    async with ClientInstance("127.0.0.1:1", ALONE) as instance:
        assert instance.client_id.startswith("127.0.0.1@")


async def test_name_server_defaults_to_the_environment(
    fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOMQ_NAMESRV", fake_broker.address)
    async with use_instance(None, None, None) as instance:
        assert instance.requests.name_servers.addresses == (fake_broker.address,)
    assert ClientInstance().requests.name_servers.addresses == (fake_broker.address,)
    monkeypatch.delenv("TRIOMQ_NAMESRV")
    with pytest.raises(ConfigError, match=r"no name server given; pass namesrv=.* or set TRIOMQ_NAMESRV"):
        ClientInstance()
