import pytest

from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster, make_message
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.processing.send_back import SendBack
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.record.properties import decode_properties
from triomq.protocol.wire.command import RemotingCommand

RETRY = "%RETRY%G"


@pytest.fixture
async def sender(cluster: FakeCluster) -> SendBack:
    cluster.add_topic(RETRY)
    await cluster.instance.routes.find(RETRY)
    return SendBack(cluster.instance, "G", ConsumerConfig(max_reconsume_times=5))


def refuse(command: RemotingCommand) -> RemotingCommand:
    return command.reply(ResponseCode.SYSTEM_ERROR, remark="look message by offset failed")


async def test_broker_stores_the_message_again(cluster: FakeCluster, sender: SendBack) -> None:
    """C.2 scenarios 41 and 42, the client's part."""
    assert await sender.send(make_message(4, UNIQ_KEY="ID"), 2)
    (command,) = cluster.of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert command.ext_fields == {
        "offset": "4000",
        "group": "G",
        "delayLevel": "2",
        "originMsgId": "ID",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "5",
        "bname": BROKER,
    }
    assert not cluster.of(RequestCode.SEND_MESSAGE_V2)
    assert sender.sent == 1


async def test_refusal_leads_to_a_copy_in_retry_topic(cluster: FakeCluster, sender: SendBack) -> None:
    cluster.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    message = make_message(4, b"body", UNIQ_KEY="ID", TAGS="A", TRAN_MSG="true")
    message.reconsume_times = 1
    assert await sender.send(message, 0)
    (command,) = cluster.of(RequestCode.SEND_MESSAGE_V2)
    fields = command.ext_fields
    assert (fields["a"], fields["b"], fields["j"], fields["l"]) == ("CLIENT_INNER_PRODUCER", RETRY, "2", "5")
    assert command.body == b"body"
    assert decode_properties(fields["i"].encode()) == {
        "UNIQ_KEY": "ID",
        "TAGS": "A",
        "ORIGIN_MESSAGE_ID": "ID",
        "RETRY_TOPIC": "T",
        "DELAY": "4",
    }
    assert sender.sent == 1


async def test_copy_leaves_the_message_unchanged(cluster: FakeCluster, sender: SendBack) -> None:
    cluster.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    message = make_message(4, UNIQ_KEY="ID", ORIGIN_MESSAGE_ID="FIRST")
    before = dict(message.properties)
    await sender.send(message, 0)
    assert message.properties == before
    (command,) = cluster.of(RequestCode.SEND_MESSAGE_V2)
    assert decode_properties(command.ext_fields["i"].encode())["ORIGIN_MESSAGE_ID"] == "FIRST"


async def test_broker_without_master_is_not_waited_for(cluster: FakeCluster, sender: SendBack) -> None:
    message = make_message(4)
    message.broker_name = "gone"
    assert await sender.send(message, 0)
    assert not cluster.of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert len(cluster.of(RequestCode.SEND_MESSAGE_V2)) == 1


async def test_the_copy_is_tried_three_times(cluster: FakeCluster, sender: SendBack) -> None:
    cluster.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    cluster.handlers[RequestCode.SEND_MESSAGE_V2] = refuse
    assert not await sender.send(make_message(4), 0)
    assert len(cluster.of(RequestCode.SEND_MESSAGE_V2)) == 3
    assert sender.sent == 0


async def test_no_retry_topic_means_no_send_back(cluster: FakeCluster, sender: SendBack) -> None:
    cluster.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    del cluster.routes[RETRY]
    assert not await sender.send(make_message(4), 0)


async def test_copy_stored_but_not_flushed_counts(cluster: FakeCluster, sender: SendBack) -> None:
    cluster.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    cluster.handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.reply(ResponseCode.FLUSH_DISK_TIMEOUT)
    assert await sender.send(make_message(4), 0)
    assert len(cluster.of(RequestCode.SEND_MESSAGE_V2)) == 1
