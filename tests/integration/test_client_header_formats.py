"""Our client and our broker in each header format: both send the agreed one."""

from typing import Final

import pytest
import trio

from triomq.client import Admin, ClientConfig, ClientInstance, Message, MessageExt, Producer, PushConsumer
from triomq.protocol.codes import RequestCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import Frame, FrameSplitter

MESSAGES: Final = 20
NAMESRV_CODES: Final = frozenset((RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[RemotingCommand]:
    """All requests of clients that are read from now on; each answer must have the format of its request."""
    found: list[RemotingCommand] = []
    asked: dict[int, int] = {}
    split = FrameSplitter.split

    def record(splitter: FrameSplitter, data: bytes) -> tuple[list[Frame], ProtocolError | None]:
        frames, error = split(splitter, data)
        for command in map(RemotingCommand.decode, frames):
            if command.is_response:
                assert command.serialize_type == asked[command.opaque]
            elif command.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:  # the broker's own
                asked[command.opaque] = command.serialize_type
                found.append(command)
        return frames, error

    monkeypatch.setattr(FrameSplitter, "split", record)
    return found


def formats(requests: list[RemotingCommand], *, of_name_server: bool) -> set[int]:
    """The header formats in which the name server, or the broker, was asked."""
    return {each.serialize_type for each in requests if (each.code in NAMESRV_CODES) is of_name_server}


@pytest.mark.parametrize("header_format", list(SerializeType))
async def test_clients_and_admin_support_every_header_format(
    namesrv: str, requests: list[RemotingCommand], header_format: SerializeType
) -> None:
    received: dict[bytes, str] = {}
    all_received = trio.Event()

    async def on_message(message: MessageExt) -> None:
        received[message.body] = message.message_id
        if len(received) == MESSAGES:
            all_received.set()

    async with (
        ClientInstance(namesrv, ClientConfig(header_format=header_format)) as instance,
        Admin(instance=instance) as admin,
        Producer("P", instance=instance) as producer,
    ):
        await admin.create_topic("T", queues=2)
        await producer.publish_queues("T")
        await instance.groups.beat()
        requests.clear()
        async with PushConsumer(
            "G", instance=instance, on_message=on_message, subscriptions={"T": "tag"}, start="earliest"
        ):
            sent = {
                body: (await producer.send(Message("T", body, tags="tag", keys=["ключ"]))).message_id
                for body in (b"%d" % number for number in range(MESSAGES))
            }
            with trio.fail_after(30):
                await all_received.wait()
        stats = await admin.topic_stats("T")
        assert sum(queue.max_offset for queue in stats.values()) == MESSAGES
        assert sum(row.consumer_offset for row in await admin.group_lag("G", "T")) == MESSAGES
    assert received == sent
    first = SerializeType.JSON if header_format is SerializeType.MSGPACK else header_format
    assert formats(requests, of_name_server=False) == {header_format}
    assert formats(requests, of_name_server=True) == {first}
    assert {RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.UNREGISTER_CLIENT} <= {
        request.code for request in requests
    }


async def test_administration_alone_has_agreed_on_nothing(namesrv: str, requests: list[RemotingCommand]) -> None:
    async with Admin(namesrv=namesrv, config=ClientConfig(header_format=SerializeType.MSGPACK)) as admin:
        await admin.create_topic("T", queues=2)
        assert len(await admin.topic_stats("T")) == 2
    assert {request.serialize_type for request in requests} == {SerializeType.JSON}
