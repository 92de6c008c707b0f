import asyncio
import os
import re

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, CancelledAtEveryAwait, FakeBroker
from tests.unit.client.fake_consumer import FakeConsumer
from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.config import ClientConfig
from triomq.protocol.bodies.client import HeartbeatData
from triomq.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.protocol.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    ConnectionLostError,
    RequestTimeoutError,
    TopicNotExistError,
)

ALONE = ClientConfig(connect=False)


async def test_each_instance_has_a_client_id_of_its_own() -> None:
    async with ClientInstance("127.0.0.1:1", ALONE) as one, ClientInstance("127.0.0.1:1", ALONE) as other:
        assert one.client_id != other.client_id
        assert re.fullmatch(rf"[0-9a-f.:]+@{os.getpid()}#[0-9a-f]{{16}}", one.client_id)


async def test_a_client_id_may_be_chosen() -> None:
    config = ClientConfig(client_ip="10.0.0.9", instance_name="me", unit_name="unit", connect=False)
    async with ClientInstance("127.0.0.1:1", config) as instance:
        assert instance.client_id == "10.0.0.9@me@unit"


async def test_opaques_start_again_after_the_largest_int32() -> None:
    instance = ClientInstance("127.0.0.1:1")
    instance.requests._opaques = iter(range(2**31 - 1, 2**31 + 1))  # type: ignore[assignment]  # any counter
    assert [instance.requests.next_opaque(), instance.requests.next_opaque()] == [2**31 - 1, 0]


@pytest.mark.parametrize("header_format", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_requests_are_answered_in_each_header_format(
    fake_broker: FakeBroker, header_format: SerializeType
) -> None:
    async with ClientInstance(fake_broker.address, ClientConfig(header_format=header_format)) as instance:
        answer = await instance.requests.ask(fake_broker.address, RequestCode.HEART_BEAT)
        assert answer.serialize_type == header_format


async def test_an_error_code_is_returned_or_raised_as_asked(fake_broker: FakeBroker) -> None:
    fake_broker.fail(RequestCode.GET_MAX_OFFSET, ResponseCode.TOPIC_NOT_EXIST, "there is none")
    async with ClientInstance(fake_broker.address) as instance:
        answer = await instance.requests.invoke(
            fake_broker.address, instance.requests.command(RequestCode.GET_MAX_OFFSET)
        )
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        with pytest.raises(TopicNotExistError, match="there is none") as caught:
            await instance.requests.ask(fake_broker.address, RequestCode.GET_MAX_OFFSET)
        assert caught.value.address == fake_broker.address


async def test_a_oneway_request_has_its_flag_and_no_answer(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        await instance.requests.oneway(
            fake_broker.address, instance.requests.command(RequestCode.UPDATE_CONSUMER_OFFSET)
        )
        (request,) = await fake_broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert request.is_oneway


async def test_a_request_may_be_cancelled_at_every_await(
    fake_broker: FakeBroker, cancelled_at_every_await: CancelledAtEveryAwait
) -> None:
    async with ClientInstance(fake_broker.address) as instance:

        async def ask() -> None:
            await instance.routes.topic_route("Topic", refresh=True)
            await instance.requests.invoke(fake_broker.address, instance.requests.command(RequestCode.HEART_BEAT))
            await fake_broker.drop()

        async for _ in cancelled_at_every_await(ask):
            await wait_all_tasks_blocked()
            connection = instance.requests.connections.get(fake_broker.address)
            assert connection is None or not connection._waiters
        assert (await instance.routes.topic_route("Topic")).queue_datas


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


async def test_close_while_connecting_fails_waiting_callers(
    fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_arguments: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    errors: list[ClientError] = []

    async def ask(instance: ClientInstance) -> None:
        try:
            await instance.routes.topic_route("Topic")
        except ClientError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        async with ClientInstance(fake_broker.address, ALONE) as instance:
            nursery.start_soon(ask, instance)
            await wait_all_tasks_blocked()
    assert [type(error) for error in errors] == [ClientClosedError]


async def test_an_instance_that_is_not_entered_says_so() -> None:
    with pytest.raises(ClientClosedError, match="not entered"):
        await ClientInstance("127.0.0.1:1").routes.topic_route("Topic")


async def test_an_instance_is_borrowed_or_made() -> None:
    async with ClientInstance("127.0.0.1:1", ALONE) as given, use_instance(None, None, given) as borrowed:
        assert borrowed is given
    async with use_instance("127.0.0.1:1", ALONE, None) as own:
        assert own.client_id
    for namesrv, config, instance in ((None, None, None), ("a:1", None, own), (None, ClientConfig(), own)):
        with pytest.raises(ConfigError):
            async with use_instance(namesrv, config, instance):
                pass


async def test_a_request_that_gets_no_answer_times_out(fake_broker: FakeBroker, autojump_clock: MockClock) -> None:
    fake_broker.on(RequestCode.HEART_BEAT, lambda _command: None)
    async with ClientInstance(fake_broker.address) as instance:
        with pytest.raises(RequestTimeoutError):
            await instance.requests.invoke(fake_broker.address, instance.requests.command(RequestCode.HEART_BEAT))
        assert trio.current_time() == pytest.approx(3.0, abs=0.1)


async def test_without_a_way_outside_the_client_ip_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("triomq.client.cluster.instance.socket.socket", fail)
    async with ClientInstance("127.0.0.1:1", ALONE) as instance:
        assert instance.client_id.startswith("127.0.0.1@")


@pytest.mark.parametrize("is_alive", [True, False])
async def test_held_request_survives_silence_only_with_probe_replies(
    fake_broker: FakeBroker, autojump_clock: MockClock, is_alive: bool
) -> None:
    fake_broker.on(RequestCode.PULL_MESSAGE, lambda _command: None)
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        if not is_alive:
            fake_broker.on(RequestCode.HEART_BEAT, lambda _command: None)
        error = RequestTimeoutError if is_alive else ConnectionLostError
        with pytest.raises(error):
            await instance.requests.invoke(
                fake_broker.address, instance.requests.command(RequestCode.PULL_MESSAGE), 40.0
            )
        assert trio.current_time() == pytest.approx(40.0 if is_alive else 12.5, abs=2.5)
    assert fake_broker.heartbeats()[0] == HeartbeatData(instance.client_id)


async def test_the_name_server_comes_from_the_environment_by_default(
    fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOMQ_NAMESRV", fake_broker.address)
    async with use_instance(None, None, None) as instance:
        assert instance.requests.name_servers.addresses == (fake_broker.address,)
    assert ClientInstance().requests.name_servers.addresses == (fake_broker.address,)
    monkeypatch.delenv("TRIOMQ_NAMESRV")
    with pytest.raises(ConfigError, match=r"no name server given; pass namesrv=.* or set TRIOMQ_NAMESRV"):
        ClientInstance()


async def test_lost_broker_is_logged_once_on_loss_and_once_on_return(
    fake_broker: FakeBroker, make_broker: BrokerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await make_broker("broker-b")
    broker.add_topic("Topic")
    fake_broker.routes = broker.routes
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        instance.groups.add_consumer("group", FakeConsumer("Topic"))
        await instance.groups.beat()
        await broker.stop()
        await wait_all_tasks_blocked()
        for _ in range(5):
            await instance.groups.beat()
        (lost,) = caplog.messages
        assert lost.startswith(f"broker unreachable, retrying address={broker.address} error=connection lost: ")
        await broker.restart()
        await instance.groups.beat()
    assert caplog.messages == [lost, f"broker reachable again address={broker.address}"]


def test_a_trio_client_under_asyncio_names_the_asyncio_one() -> None:
    async def enter() -> None:
        async with ClientInstance("127.0.0.1:1"):
            pass

    with pytest.raises(ClientError, match=r"runs on trio: .*triomq\.client\.asyncio for asyncio"):
        asyncio.run(enter())
