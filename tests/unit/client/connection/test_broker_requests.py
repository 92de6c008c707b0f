from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.records import make_record
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.fake_consumer import FakeConsumer, until
from triomq.client.cluster.instance import ClientInstance
from triomq.client.connection.broker_requests import RequestServer
from triomq.protocol.bodies.client import GetConsumerStatusBody, ResetOffsetBody
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.namespace import Namespace
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, GetConsumerRunningInfoRequestHeader
from triomq.protocol.requests.messages import ConsumeMessageDirectlyRequestHeader
from triomq.protocol.requests.offsets import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from triomq.protocol.wire.command import RemotingCommand

QUEUE = MessageQueue("Topic", "broker-a", 2)


def record(body: bytes) -> bytes:
    return make_record(queue_offset=3, body=body, topic=b"Topic")


async def asked(fake_broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    """Push a request to the client; return its answer."""
    before = len(fake_broker.requests)

    def answers() -> list[RemotingCommand]:
        return [request for request in fake_broker.requests[before:] if request.is_response]

    await fake_broker.push(command)
    await until(lambda: bool(answers()))
    return answers()[0]


@pytest.fixture
async def registered(fake_broker: FakeBroker) -> AsyncGenerator[FakeConsumer, None]:
    """A consumer of "group" on an instance that is connected to the fake broker."""
    consumer = FakeConsumer("Topic")
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        instance.groups.add_consumer("group", consumer)
        await instance.groups.beat()
        yield consumer


async def test_oneway_requests_reach_the_consumer(fake_broker: FakeBroker, registered: FakeConsumer) -> None:
    reset = ResetOffsetRequestHeader("Topic", "group", -1, is_force=False).encode()
    body = ResetOffsetBody({QUEUE: 5}).encode()
    for group in ("group", "another"):
        members = ConsumerGroupRequestHeader(group).encode()
        await fake_broker.push(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1, flag=2, ext_fields=members))
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        await fake_broker.push(RemotingCommand(code, 2, flag=2, ext_fields=reset | {"group": group}, body=body))
    await wait_all_tasks_blocked()
    assert registered.calls == [("members",), ("reset", "Topic", {QUEUE: 5})]
    assert not any(request.is_response for request in fake_broker.requests)


async def test_state_of_registered_groups_is_reported(fake_broker: FakeBroker, registered: FakeConsumer) -> None:
    fields = GetConsumerStatusRequestHeader("Topic", "group").encode()
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    answer = await asked(fake_broker, RemotingCommand(code, 9, ext_fields=fields))
    table = GetConsumerStatusBody.decode(bytes(answer.body)).message_queue_table
    assert (answer.opaque, table) == (9, {MessageQueue("Topic", "broker-a", 0): 17})
    for group, expected in (("group", (0, b"info")), ("another", (1, b""))):
        fields = GetConsumerRunningInfoRequestHeader(group, "client").encode()
        request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=fields)
        answer = await asked(fake_broker, request)
        assert (answer.code, answer.body) == expected


async def test_requests_of_a_name_server_are_ignored(fake_broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    consumer, fields = FakeConsumer("Topic"), ConsumerGroupRequestHeader("group").encode()
    async with ClientInstance(fake_broker.address) as instance:
        instance.groups.add_consumer("group", consumer)
        for code in (40, 220, 221, 307, 309, 39, 326):
            await fake_broker.push(RemotingCommand(code, 1, flag=2, ext_fields=fields))
            answer = await asked(fake_broker, RemotingCommand(code, 2, ext_fields=fields))
            assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 2)
        assert not consumer.calls
        assert caplog.messages == [f"requests ignored, no broker sent them peer={fake_broker.address} code=40"]
        await instance.routes.topic_route("Topic")  # now the address is that of a broker, too
        await instance.groups.beat()
        await fake_broker.push(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 3, flag=2, ext_fields=fields))
        await until(lambda: ("members",) in consumer.calls)


def direct_request(group: str = "group", body: bytes = b"") -> RemotingCommand:
    header = ConsumeMessageDirectlyRequestHeader(group, broker_name="broker-a")
    return RemotingCommand(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=header.encode(), body=body or record(b"hello")
    )


async def test_a_message_may_be_consumed_directly(fake_broker: FakeBroker, registered: FakeConsumer) -> None:
    answer = await asked(fake_broker, direct_request())
    assert (answer.code, answer.body) == (0, b"hello from broker-a")
    assert (await asked(fake_broker, direct_request("another"))).code == ResponseCode.SYSTEM_ERROR


async def test_direct_consumption_is_bounded(fake_broker: FakeBroker, registered: FakeConsumer) -> None:
    registered.direct = trio.Event()
    for _ in range(16):
        await fake_broker.push(direct_request())
    await wait_all_tasks_blocked()
    assert (await asked(fake_broker, direct_request())).code == ResponseCode.SYSTEM_BUSY
    registered.direct.set()


class FullConnection:
    """Of a peer that does not read."""

    address = "broker:10911"
    is_broker = is_full = True

    def post(self, frame: bytes) -> None:
        raise AssertionError(frame)


async def test_peer_that_does_not_read_gets_no_answers(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    consumer = FakeConsumer("Topic")
    server = RequestServer({"group": consumer}, {}, {}, nursery, Namespace(None))
    connection: Any = FullConnection()
    for _ in range(10):
        server.serve(connection, direct_request())
    header = ConsumerGroupRequestHeader("group").encode()
    oneway = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1, flag=2, ext_fields=header)
    server.serve(connection, oneway)
    await wait_all_tasks_blocked()
    assert consumer.calls == [("members",)]
    assert caplog.text.count("does not read") == 1


async def test_unreadable_request_is_refused_and_logged(
    fake_broker: FakeBroker, registered: FakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await asked(fake_broker, direct_request(body=b"no record"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "request refused" in caplog.text


async def test_unknown_request_is_not_supported_and_oneway_ignored(
    fake_broker: FakeBroker, registered: FakeConsumer
) -> None:
    await fake_broker.push(RemotingCommand(4711, 1, flag=2))
    answer = await asked(fake_broker, RemotingCommand(4711, 2))
    assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 2)
