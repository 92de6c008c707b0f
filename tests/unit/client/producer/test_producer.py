import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, CancelledAtEveryAwait, FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.producer.config import ProducerConfig, SendStatus
from triomq.client.producer.producer import Producer, select_by_hash, select_by_random
from triomq.client.producer.publish import encode_message_properties, split_batch
from triomq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientClosedError,
    IllegalNameError,
    MessageIllegalError,
    NoRouteError,
    ProtocolError,
    RequestTimeoutError,
    SystemBusyError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.batch import decode_batch, encode_batch
from triomq.protocol.record.message import Message, is_selectable
from triomq.protocol.record.properties import decode_properties, encode_properties
from triomq.protocol.requests.messages import SendMessageRequestHeaderV2
from triomq.protocol.wire.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2


def properties_of(command: RemotingCommand) -> dict[str, str]:
    return decode_properties(command.ext_fields["i"].encode())


@pytest.fixture
async def producer(fake_broker: FakeBroker) -> AsyncGenerator[Producer, None]:
    async with Producer("group", namesrv=fake_broker.address) as made:
        yield made


async def test_send_result_has_place_of_message(fake_broker: FakeBroker, producer: Producer) -> None:
    message = Message("Topic", b"body", tags="TagA", keys=["k1", "k2"], properties={"a": "ü"}, flag=7)
    result = await producer.send(message)
    (request,) = fake_broker.of(SEND)
    header = SendMessageRequestHeaderV2.decode(request.ext_fields)
    assert (header.producer_group, header.topic, header.default_topic) == ("group", "Topic", "TBW102")
    assert (header.default_topic_queue_nums, header.sys_flag, header.flag) == (4, 0, 7)
    assert (header.reconsume_times, header.unit_mode, header.batch) == (0, False, False)
    assert request.ext_fields["n"] == "broker-a"
    assert header.born_timestamp > 1_700_000_000_000
    expected = {"TAGS": "TagA", "KEYS": "k1 k2", "a": "ü", "WAIT": "true", "UNIQ_KEY": result.message_id}
    assert (request.body, properties_of(request)) == (b"body", expected)
    queue = MessageQueue("Topic", "broker-a", header.queue_id)
    place = "7F00000100002A9F0000000000000000"
    assert result == (SendStatus.SEND_OK, result.message_id, place, queue, 0, None)

    numbers = [(await producer.send(message)).queue.queue_id for _ in range(7)]
    assert [header.queue_id, *numbers] == [(header.queue_id + step) % 4 for step in range(8)]
    assert len({properties_of(request)["UNIQ_KEY"] for request in fake_broker.of(SEND)}) == 8


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        (MessageQueue("Other", "broker-a", 0), "is not one of the message's topic"),
        (MessageQueue("Topic", "broker-a", 4), "cannot be sent to; those that can: Topic@broker-a:0, "),
        (MessageQueue("Topic", "broker-b", 0), "cannot be sent to"),
    ],
)
async def test_unwritable_queue_is_refused(producer: Producer, queue: MessageQueue, reason: str) -> None:
    with pytest.raises(MessageIllegalError, match=reason):
        await producer.send(Message("Topic", b"x"), queue=queue)


async def test_a_selector_chooses_among_all_queues(producer: Producer) -> None:
    def select(queues: Sequence[MessageQueue], _message: Message, key: object) -> MessageQueue:
        assert (queues, key) == (tuple(MessageQueue("Topic", "broker-a", number) for number in range(4)), "k")
        return queues[2]

    result = await producer.send(Message("Topic", b"x"), selector=select, key="k")
    assert result.queue.queue_id == 2
    with pytest.raises(MessageIllegalError, match="not both"):
        await producer.send(Message("Topic", b"x"), selector=select, queue=result.queue)


async def test_only_large_compressible_bodies_are_compressed(fake_broker: FakeBroker, producer: Producer) -> None:
    bodies = [b"x" * 4095, b"x" * 4096, b"x" * 200_000, Random(1).randbytes(4096)]
    for body in bodies:
        await producer.send(Message("Topic", body))
    requests = fake_broker.of(SEND)
    assert [request.ext_fields["f"] for request in requests] == ["0", "769", "769", "0"]
    assert [bytes(request.body) for request in requests[::3]] == [bodies[0], bodies[3]]
    assert [zlib.decompress(request.body) for request in requests[1:3]] == bodies[1:3]


@pytest.mark.parametrize("body", [b"", b"x" * 1001])
async def test_bodies_of_invalid_size_are_rejected_before_sending(fake_broker: FakeBroker, body: bytes) -> None:
    async with Producer(
        "group", namesrv=fake_broker.address, settings=ProducerConfig(max_message_size_bytes=1000)
    ) as producer:
        for attempt in (producer.send, producer.send_oneway):
            with pytest.raises(MessageIllegalError, match="max_message_size_bytes"):
                await attempt(Message("Topic", body))
        with pytest.raises(MessageIllegalError, match="max_message_size_bytes"):
            await producer.send_batch([Message("Topic", b"x"), Message("Topic", body)])
    assert not fake_broker.of(SEND)


@pytest.mark.parametrize(
    ("message", "error", "reason"),
    [
        (Message("Topic", b"x", properties={"big": "y" * 32600}), MessageIllegalError, "32767"),
        (Message("Topic", b"x", tags="a\x01b"), ProtocolError, "separator"),
        (Message("white space", b"x"), IllegalNameError, "white space"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), IllegalNameError, "brokers write it themselves"),
        (Message("ReadOnly", b"x"), NoRouteError, "no writable queue"),
    ],
)
async def test_message_that_no_broker_stores_is_rejected(
    fake_broker: FakeBroker, producer: Producer, message: Message, error: type[Exception], reason: str
) -> None:
    fake_broker.add_topic("ReadOnly", 4, 4)
    with pytest.raises(error, match=reason):
        await producer.send(message)
    assert not fake_broker.of(SEND)


async def test_send_without_master_looks_for_one(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.add_topic("Topic")
    master = fake_broker.routes["Topic"]
    slave = [BrokerData("DefaultCluster", fake_broker.name, {1: fake_broker.address})]
    fake_broker.routes["Topic"] = TopicRouteData(queue_datas=master.queue_datas, broker_datas=slave)
    with pytest.raises(NoRouteError, match="masters are away"):
        await producer.send(Message("Topic", b"x"))
    fake_broker.routes["Topic"] = master
    while not fake_broker.of(SEND):
        with suppress(NoRouteError):
            await producer.send(Message("Topic", b"x"))
        await trio.sleep(0.01)


async def test_first_send_creates_a_new_topic(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.add_topic("TBW102", 8, 7)
    assert [(await producer.send(Message("New", b"x"))).queue.queue_id for _ in range(8)].count(0) == 2
    assert len(fake_broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2

    fake_broker.add_topic("New", 1)
    assert await producer._entered()._instance.routes.find("New") is not None
    assert [(await producer.send(Message("New", b"x"))).queue.queue_id for _ in range(4)] == [0] * 4
    assert await producer.publish_queues("New") == (MessageQueue("New", "broker-a", 0),)


async def test_last_error_lists_the_attempts(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.fail(SEND, ResponseCode.SYSTEM_ERROR, "disk on fire")
    with pytest.raises(BrokerResponseError, match="disk on fire") as caught:
        await producer.send(Message("Topic", b"x"))
    assert caught.value.__notes__ == ["tried 3 times: broker-a, broker-a, broker-a"]
    assert len(fake_broker.of(SEND)) == 3


async def test_name_servers_that_hang_count_against_the_timeout(
    fake_broker: FakeBroker, autojump_clock: MockClock
) -> None:
    fake_broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _command: None)
    settings = ProducerConfig(send_timeout_s=1.0)
    async with Producer("group", namesrv=fake_broker.address, settings=settings) as producer:
        with pytest.raises(RequestTimeoutError, match=f"no route for topic 'Topic' .* {fake_broker.address}"):
            await producer.send(Message("Topic", b"x"))
        assert trio.current_time() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("code", "status"),
    [(10, SendStatus.FLUSH_DISK_TIMEOUT), (11, SendStatus.SLAVE_NOT_AVAILABLE), (12, SendStatus.FLUSH_SLAVE_TIMEOUT)],
)
async def test_message_stored_less_safely_is_stored(fake_broker: FakeBroker, code: int, status: SendStatus) -> None:
    def less_safely(command: RemotingCommand) -> RemotingCommand:
        response = fake_broker.answer_send(command)
        response.code = code
        return response

    fake_broker.on(SEND, less_safely)
    for again, attempts in ((False, 1), (True, 4)):
        settings = ProducerConfig(retry_another_broker_when_not_stored_ok=again)
        async with Producer("group", namesrv=fake_broker.address, settings=settings) as producer:
            assert (await producer.send(Message("Topic", b"x"))).status is status
            assert len(fake_broker.of(SEND)) == attempts


async def test_answer_may_name_another_queue_or_be_unreadable(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.on(SEND, lambda command: command.reply(ext_fields={"queueId": "x"}))
    with pytest.raises(ProtocolError, match="answer to a send"):
        await producer.send(Message("Topic", b"x"))
    fake_broker.on(SEND, lambda command: command.reply(ext_fields={"queueId": "77", "queueOffset": "1", "msgId": "id"}))
    assert (await producer.send(Message("Topic", b"x"))).queue == MessageQueue("Topic", "broker-a", 77)


async def test_a_oneway_send_does_not_wait(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.on(SEND, lambda _command: None)
    await producer.send_oneway(Message("Topic", b"x" * 100_000), queue=MessageQueue("Topic", "broker-a", 1))
    (request,) = await fake_broker.wait_for(SEND)
    assert request.is_oneway
    assert request.ext_fields["e"] == "1"
    assert zlib.decompress(request.body) == b"x" * 100_000


async def test_failed_batch_reports_stored_messages(fake_broker: FakeBroker) -> None:
    count = 0

    def fail_third(command: RemotingCommand) -> RemotingCommand:
        nonlocal count
        count += 1
        return fake_broker.answer_send(command) if count < 3 else command.reply(ResponseCode.SYSTEM_BUSY)

    fake_broker.on(RequestCode.SEND_BATCH_MESSAGE, fail_third)
    async with Producer(
        "group", namesrv=fake_broker.address, settings=ProducerConfig(max_message_size_bytes=1_000, on_busy="raise")
    ) as producer:
        with pytest.raises(SystemBusyError) as caught:
            await producer.send_batch([Message("Topic", b"x" * 600)] * 5)
    assert caught.value.__notes__ == ["send_batch: 2 of 5 messages were stored before this"]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no message"),
        ([Message("A", b"x"), Message("B", b"x")], "same topic"),
        ([Message("A", b"x"), Message("A", b"x", wait_store_ok=False)], "same wait_store_ok"),
        ([Message("A", b"x", delay_level=1)], "delayed"),
        ([Message("A", b"x", delay_s=1)], "delayed"),
        ([Message("%RETRY%group", b"x")], "retry topics"),
    ],
)
async def test_messages_that_are_no_batch_are_refused(producer: Producer, messages: list[Message], reason: str) -> None:
    with pytest.raises(MessageIllegalError, match=reason):
        await producer.send_batch(messages)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=30), st.integers(1, 5000))
def test_split_batch_keeps_order_and_limits(sizes: list[int], limit: int) -> None:
    messages = [Message("T", b"x" * size) for size in sizes]
    ids = map(str, range(len(sizes)))
    batches = list(split_batch(messages, lambda: next(ids), limit))
    entries = [decode_batch(batch.body) for batch in batches]
    assert [len(entry.body) for batch in entries for entry in batch] == sizes
    assert ",".join(batch.message_ids for batch in batches) == ",".join(map(str, range(len(sizes))))
    assert [batch.end for batch in batches] == [sum(map(len, entries[: n + 1])) for n in range(len(batches))]
    assert all(len(batch) == 1 or sum(len(entry.body) for entry in batch) <= limit for batch in entries)


@given(
    tags=st.none() | st.just("") | st.text(max_size=300).filter(is_selectable),
    keys=st.just("") | st.just("k1 k2"),
    wait=st.booleans(),
    delay=st.sampled_from([{}, {"delay_level": 3}, {"delay_s": 1.5}]),
)
def test_fast_property_encoding_matches_the_general_one(
    tags: str | None, keys: str, wait: bool, delay: dict[str, Any]
) -> None:
    message = Message("T", b"x", tags=tags, keys=keys, wait_store_ok=wait, **delay)
    try:
        expected = encode_properties(message.all_properties() | {"UNIQ_KEY": "id"})
    except ProtocolError:
        with pytest.raises(ProtocolError):
            encode_message_properties(message, "id")
    else:
        assert decode_properties(encode_message_properties(message, "id").encode()) == decode_properties(expected)


async def test_a_closed_producer_refuses(fake_broker: FakeBroker) -> None:
    async with Producer("group", namesrv=fake_broker.address) as producer:
        pass
    with pytest.raises(ClientClosedError):
        await producer.send(Message("Topic", b"x"))


async def test_order_topic_skips_queues_of_missing_brokers(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.routes["Order"] = TopicRouteData(
        order_topic_conf="gone:2;broker-a:1",
        queue_datas=[QueueData("broker-a", 1, 1, 6)],
        broker_datas=[BrokerData("C", "broker-a", {0: fake_broker.address})],
    )
    here = MessageQueue("Order", "broker-a", 0)
    gone = MessageQueue("Order", "gone", 1)
    assert await producer.publish_queues("Order") == (MessageQueue("Order", "gone", 0), gone, here)
    assert {(await producer.send(Message("Order", b"x"))).queue for _ in range(6)} == {here}
    with pytest.raises(NoRouteError, match="queue Order@gone:1: its broker has no master now"):
        await producer.send(Message("Order", b"x"), queue=gone)
    with pytest.raises(NoRouteError, match="has no master now"):
        await producer.send(Message("Order", b"x"), selector=select_by_hash, key=4)


async def test_encoded_batch_is_retried_unchanged(fake_broker: FakeBroker, producer: Producer) -> None:
    body = encode_batch([(0, b"one", b"UNIQ_KEY\x01id"), (0, b"two", b"")])
    fake_broker.fail(RequestCode.SEND_BATCH_MESSAGE, ResponseCode.SYSTEM_ERROR, times=1)
    result = await producer.send_encoded_batch("Topic", body)
    assert (result.queue.topic, result.message_id) == ("Topic", "")
    requests = fake_broker.of(RequestCode.SEND_BATCH_MESSAGE)
    assert [request.body for request in requests] == [body, body]
    assert (requests[0].ext_fields["m"], requests[0].ext_fields["b"]) == ("true", "Topic")


QUEUES = tuple(MessageQueue("T", "a", number) for number in range(7))
MESSAGE = Message("T", b"x")


@pytest.mark.parametrize(
    ("key", "java_hash_code"),
    [
        ("", 0),
        ("order-17", 1234255109),
        ("Aa", 2112),
        ("BB", 2112),
        (17, 17),
        (-17, -17),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), -(2**31)),
        (2**31, -(2**31)),
        (2**40 + 5, 261),
        (-(2**40), -256),
    ],
)
def test_a_key_chooses_the_queue_that_java_chooses(key: object, java_hash_code: int) -> None:
    """Hash codes of String, Integer and Long; Math.abs(hash % 7)."""
    assert select_by_hash(QUEUES, MESSAGE, key).queue_id == abs(java_hash_code) % 7


def test_without_a_key_the_sharding_key_counts() -> None:
    message = Message("T", b"x", sharding_key="Aa")
    assert select_by_hash(QUEUES, message, None) == select_by_hash(QUEUES, MESSAGE, "Aa")
    assert select_by_hash(QUEUES, message, "order-17") == select_by_hash(QUEUES, MESSAGE, "order-17")


@pytest.mark.parametrize("key", [None, 1.5, b"bytes", True, 2**63, -(2**63) - 1])
def test_a_key_without_a_known_hash_is_refused(key: object) -> None:
    with pytest.raises(MessageIllegalError, match="select_by_hash needs key="):
        select_by_hash(QUEUES, MESSAGE, key)


def test_random_choice_reaches_all_queues() -> None:
    assert {select_by_random(QUEUES, MESSAGE, None) for _ in range(500)} == set(QUEUES)


async def test_a_send_may_be_cancelled_at_every_await(
    fake_broker: FakeBroker, cancelled_at_every_await: CancelledAtEveryAwait
) -> None:
    async with ClientInstance(fake_broker.address) as instance:

        async def send_everything() -> None:
            await fake_broker.drop()
            async with Producer("group", instance=instance) as producer:
                await producer.send(Message("Topic", b"x"))
                await producer.send_oneway(Message("Topic", b"x"))
                await producer.send_batch([Message("Topic", b"x")] * 3)

        async for _ in cancelled_at_every_await(send_everything):
            await wait_all_tasks_blocked()
            connection = instance.requests.connections.get(fake_broker.address)
            assert connection is None or not (connection._waiters or connection._queue)
            assert not instance.groups._producers


async def test_queue_newer_than_route_is_sent_to(fake_broker: FakeBroker, make_broker: BrokerFactory) -> None:
    """It may be on a broker that the route did not have, too."""
    other = await make_broker("broker-b")
    async with Producer("group", namesrv=fake_broker.address) as producer:
        await producer.send(Message("Topic", b"x"))
        fake_broker.add_topic("Topic", 5)
        new = MessageQueue("Topic", "broker-a", 4)
        assert (await producer.send(Message("Topic", b"x"), queue=new)).queue == new
        fake_broker.add_topic("Topic", 6, 6, other)
        await producer.send_oneway(Message("Topic", b"x"), queue=MessageQueue("Topic", "broker-b", 5))
        await other.wait_for(SEND)
