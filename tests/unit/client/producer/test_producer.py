import zlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, CancelledAtEveryAwait, FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.producer import Producer, select_by_hash, select_by_random
from triomq.client.producer.publish import encode_message_properties, split_batch
from triomq.client.producer.send_result import SendStatus
from triomq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientClosedError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    IllegalNameError,
    MessageIllegalError,
    MessageRefusedError,
    NameServerError,
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


async def test_a_send_tells_where_the_message_was_stored(fake_broker: FakeBroker, producer: Producer) -> None:
    result = await producer.send(
        Message("Topic", b"body", tags="TagA", keys=["k1", "k2"], properties={"a": "ü"}, flag=7)
    )

    (request,) = fake_broker.of(SEND)
    header = SendMessageRequestHeaderV2.decode(request.ext_fields)
    assert (header.producer_group, header.topic, header.default_topic) == ("group", "Topic", "TBW102")
    assert (header.default_topic_queue_nums, header.sys_flag, header.flag) == (4, 0, 7)
    assert (header.reconsume_times, header.unit_mode, header.batch, header.broker_name) == (0, False, False, "broker-a")
    assert header.born_timestamp > 1_700_000_000_000
    assert request.body == b"body"
    assert properties_of(request) == {
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "a": "ü",
        "WAIT": "true",
        "UNIQ_KEY": result.message_id,
    }
    assert result.status is SendStatus.SEND_OK
    assert len(result.message_id) in {32, 56}
    assert result.offset_message_id == "7F00000100002A9F0000000000000000"
    assert result.queue == MessageQueue("Topic", "broker-a", header.queue_id)
    assert result.queue_offset == 0


async def test_queues_take_turns(producer: Producer) -> None:
    results = [await producer.send(Message("Topic", b"x")) for _ in range(8)]
    numbers = [result.queue.queue_id for result in results]
    assert numbers == [(numbers[0] + step) % 4 for step in range(8)]
    assert len({result.message_id for result in results}) == 8


@pytest.mark.parametrize("header_format", list(SerializeType))
@pytest.mark.parametrize("size", [1, 100_000])
async def test_each_header_format_carries_the_same_message(
    fake_broker: FakeBroker, make_broker: BrokerFactory, header_format: SerializeType, size: int
) -> None:
    broker = await make_broker("broker-b")
    broker.add_topic("Topic")
    fake_broker.routes = broker.routes
    broker.on(RequestCode.HEART_BEAT, lambda command: command.reply(ext_fields=dict(command.ext_fields)))
    async with (
        ClientInstance(fake_broker.address, ClientConfig(header_format=header_format)) as instance,
        Producer("group", instance=instance, settings=ProducerConfig(compress_over_bytes=2**30)) as producer,
    ):
        await producer.publish_queues("Topic")
        await instance.groups.beat()
        await producer.send(Message("Topic", b"x" * size, tags="T"))
        await producer.send_batch([Message("Topic", b"x" * size, tags="T")])
        await producer.send_oneway(Message("Topic", b"x" * size, tags="T"))
        await broker.wait_for(SEND, 2)
    for request in broker.of(SEND):
        assert request.serialize_type == header_format
        assert request.body == b"x" * size
        assert properties_of(request)["TAGS"] == "T"
    assert [request.serialize_type for request in broker.of(RequestCode.SEND_BATCH_MESSAGE)] == [header_format]


async def test_a_named_queue_gets_the_message(producer: Producer) -> None:
    queue = MessageQueue("Topic", "broker-a", 3)
    assert (await producer.send(Message("Topic", b"x"), queue=queue)).queue == queue


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        (MessageQueue("Other", "broker-a", 0), "is not one of the message's topic"),
        (MessageQueue("Topic", "broker-a", 4), "cannot be sent to; those that can: Topic@broker-a:0, "),
        (MessageQueue("Topic", "broker-b", 0), "cannot be sent to"),
    ],
)
async def test_a_queue_that_cannot_be_sent_to_is_refused(producer: Producer, queue: MessageQueue, reason: str) -> None:
    with pytest.raises(MessageIllegalError, match=reason):
        await producer.send(Message("Topic", b"x"), queue=queue)


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


async def test_a_selector_chooses_among_all_queues(producer: Producer) -> None:
    seen: list[tuple[Sequence[MessageQueue], object]] = []

    def select(queues: Sequence[MessageQueue], _message: Message, key: object) -> MessageQueue:
        seen.append((queues, key))
        return queues[2]

    result = await producer.send(Message("Topic", b"x"), selector=select, key="k")
    assert result.queue.queue_id == 2
    assert seen == [(tuple(MessageQueue("Topic", "broker-a", number) for number in range(4)), "k")]
    with pytest.raises(MessageIllegalError, match="not both"):
        await producer.send(Message("Topic", b"x"), selector=select, queue=result.queue)


async def test_equal_keys_go_to_one_queue(producer: Producer) -> None:
    """C.2 scenario 12."""
    queues = {
        (await producer.send(Message("Topic", b"x"), selector=select_by_hash, key="order-17")).queue for _ in "abc"
    }
    assert len(queues) == 1


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


async def test_properties_unstorable_by_broker_are_rejected(producer: Producer) -> None:
    with pytest.raises(MessageIllegalError, match="32767"):
        await producer.send(Message("Topic", b"x", properties={"big": "y" * 32600}))
    with pytest.raises(ProtocolError, match="separator"):
        await producer.send(Message("Topic", b"x", tags="a\x01b"))


@pytest.mark.parametrize("topic", ["", "white space", "x" * 128, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_topics_that_must_not_be_sent_to_are_refused(producer: Producer, topic: str) -> None:
    with pytest.raises(IllegalNameError):
        await producer.send(Message(topic, b"x"))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(IllegalNameError):
        Producer("white space", namesrv="a:1")
    for settings in (
        {"send_timeout_s": 0},
        {"retries": -1},
        {"max_message_size_bytes": 0},
        {"compress_over_bytes": -1},
    ):
        with pytest.raises(ConfigError):
            ProducerConfig(**settings)  # type: ignore[arg-type]  # any one of them


async def test_a_new_topic_is_created_by_the_first_send(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.add_topic("TBW102", 8, 7)
    assert [(await producer.send(Message("New", b"x"))).queue.queue_id for _ in range(8)].count(0) == 2
    assert len(fake_broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2

    fake_broker.add_topic("New", 1)
    assert await producer._entered()._instance.routes.find("New") is not None
    assert [(await producer.send(Message("New", b"x"))).queue.queue_id for _ in range(4)] == [0] * 4
    assert await producer.publish_queues("New") == (MessageQueue("New", "broker-a", 0),)


async def test_a_new_topic_is_created_where_the_broker_is_now(
    fake_broker: FakeBroker, make_broker: BrokerFactory
) -> None:
    name_server = await make_broker("name-server")
    fake_broker.add_topic("TBW102", 8, 7)
    name_server.routes = fake_broker.routes
    async with Producer("group", namesrv=name_server.address) as producer:
        await producer.send(Message("New", b"body"))
        await fake_broker.stop()
        moved = await make_broker(fake_broker.name)
        moved.add_topic("TBW102", 8, 7)
        name_server.routes = moved.routes
        await producer.send(Message("Newer", b"body"))
        await producer.send(Message("New", b"body"))
        assert len(moved.of(RequestCode.SEND_MESSAGE_V2)) == 2


async def test_first_sends_of_topic_wait_briefly_for_broker_restart(
    fake_broker: FakeBroker, producer: Producer, nursery: trio.Nursery
) -> None:
    """It is its own name server, so nobody could tell the template meanwhile."""

    async def restart_soon() -> None:
        await trio.sleep(0.2)
        await fake_broker.restart()

    fake_broker.add_topic("TBW102", 8, 7)
    await producer.send(Message("New", b"body"))
    await fake_broker.stop()
    await wait_all_tasks_blocked(0.01)
    nursery.start_soon(restart_soon)
    await producer.send(Message("New", b"body"))
    assert len(fake_broker.of(RequestCode.SEND_MESSAGE_V2)) == 2


async def test_topic_created_during_template_lookup_is_used_as_is(fake_broker: FakeBroker) -> None:
    fake_broker.add_topic("TBW102", 8, 7)
    async with ClientInstance(fake_broker.address) as instance, Producer("group", instance=instance) as producer:

        async def make_topic_meanwhile(command: RemotingCommand) -> RemotingCommand:
            if command.ext_fields["topic"] == "TBW102":
                fake_broker.add_topic("New", 1)
                await instance.routes.topic_route("New")
            return fake_broker.answer_route(command)

        fake_broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, make_topic_meanwhile)
        await producer.send(Message("New", b"body"))
        assert {(await producer.send(Message("New", b"body"))).queue.queue_id for _ in range(8)} == {0}


async def test_without_route_and_automatic_creation_the_error_helps(producer: Producer) -> None:
    with pytest.raises(NoRouteError, match="similar topics: Topic; automatic creation seems off"):
        await producer.send(Message("Topik", b"x"))


async def test_a_topic_without_a_writable_queue_says_so(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.add_topic("ReadOnly", 4, 4)
    with pytest.raises(NoRouteError, match="no writable queue"):
        await producer.send(Message("ReadOnly", b"x"))


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205])
async def test_transient_errors_are_retried_with_the_same_message(
    fake_broker: FakeBroker, producer: Producer, code: int
) -> None:
    """C.2 scenario 10."""
    fake_broker.fail(SEND, code, times=2)
    result = await producer.send(Message("Topic", b"x"))
    requests = fake_broker.of(SEND)
    assert len(requests) == 3
    assert {properties_of(request)["UNIQ_KEY"] for request in requests} == {result.message_id}
    assert len({request.opaque for request in requests}) == 3


async def test_after_the_last_try_the_error_tells_the_tries(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.fail(SEND, ResponseCode.SYSTEM_ERROR, "disk on fire")
    with pytest.raises(BrokerResponseError, match="disk on fire") as caught:
        await producer.send(Message("Topic", b"x"))
    assert caught.value.__notes__ == ["tried 3 times: broker-a, broker-a, broker-a"]
    assert len(fake_broker.of(SEND)) == 3


@pytest.mark.parametrize(("code", "error"), [(13, MessageRefusedError)])
async def test_other_errors_are_raised_at_once(
    fake_broker: FakeBroker, producer: Producer, code: int, error: type[BrokerResponseError]
) -> None:
    """C.2 scenario 10."""
    fake_broker.fail(SEND, code)
    with pytest.raises(error):
        await producer.send(Message("Topic", b"x"))
    assert len(fake_broker.of(SEND)) == 1


async def test_with_a_chosen_queue_nothing_is_tried_again(fake_broker: FakeBroker, producer: Producer) -> None:
    """C.2 scenario 12."""
    fake_broker.fail(SEND, ResponseCode.SYSTEM_ERROR)
    for choice in ({"queue": MessageQueue("Topic", "broker-a", 0)}, {"selector": select_by_hash, "key": "k"}):
        with pytest.raises(BrokerResponseError):
            await producer.send(Message("Topic", b"x"), **choice)
    assert len(fake_broker.of(SEND)) == 2


async def test_the_next_try_goes_to_another_broker(fake_broker: FakeBroker, make_broker: BrokerFactory) -> None:
    """C.2 scenario 10."""
    other = await make_broker("broker-b")
    fake_broker.add_topic("Topic", 4, 6, other)
    async with Producer("group", namesrv=fake_broker.address) as producer:
        other.fail(SEND, ResponseCode.SERVICE_NOT_AVAILABLE)
        results = [await producer.send(Message("Topic", b"x")) for _ in range(8)]
        assert {result.queue.broker_name for result in results} == {"broker-a"}
        assert 1 <= len(other.of(SEND)) <= 4

        await other.stop()
        results = [await producer.send(Message("Topic", b"x")) for _ in range(8)]
        assert {result.queue.broker_name for result in results} == {"broker-a"}


@pytest.mark.parametrize("queue", [None, MessageQueue("Topic", "broker-b", 1)], ids=["any", "queue"])
async def test_sends_wait_for_only_broker(
    fake_broker: FakeBroker, make_broker: BrokerFactory, autojump_clock: MockClock, queue: MessageQueue | None
) -> None:
    broker = await make_broker("broker-b")
    broker.add_topic("Topic")
    fake_broker.routes["Topic"] = broker.routes["Topic"]
    message = Message("Topic", b"x")
    async with (
        Producer("group", namesrv=fake_broker.address) as producer,
        Producer("group", namesrv=fake_broker.address, settings=ProducerConfig(retries=0)) as once,
    ):
        for each in (producer, once):
            await each.send(message)
        await broker.stop()
        await wait_all_tasks_blocked()
        start = trio.current_time()
        with pytest.raises(ConnectError, match="Connection refused"):
            await once.send(message, queue=queue)
        assert trio.current_time() == start
        with pytest.raises(ConnectError, match="Connection refused"):
            await producer.send(message, queue=queue)
        assert trio.current_time() - start == pytest.approx(2.8, abs=0.05)  # of 3.0

        before = len(broker.of(SEND))
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(partial(producer.send, message, queue=queue))
            await trio.sleep(2.0)
            await broker.restart()
        assert len(broker.of(SEND)) == before + 10


async def test_all_tries_together_take_no_longer_than_the_timeout(
    fake_broker: FakeBroker, autojump_clock: MockClock
) -> None:
    async def slow_failure(command: RemotingCommand) -> RemotingCommand:
        await trio.sleep(0.8)
        return command.reply(ResponseCode.SYSTEM_ERROR)

    fake_broker.on(SEND, slow_failure)
    async with Producer(
        "group", namesrv=fake_broker.address, settings=ProducerConfig(send_timeout_s=1.0, retries=9)
    ) as producer:
        start = trio.current_time()
        with pytest.raises(RequestTimeoutError):
            await producer.send(Message("Topic", b"x"))
        assert trio.current_time() - start == pytest.approx(1.0, abs=0.05)
    assert len(fake_broker.of(SEND)) == 2


async def test_name_servers_that_hang_count_against_the_timeout(
    fake_broker: FakeBroker, autojump_clock: MockClock
) -> None:
    fake_broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _command: None)
    settings = ProducerConfig(send_timeout_s=1.0)
    async with Producer("group", namesrv=fake_broker.address, settings=settings) as producer:
        with pytest.raises(RequestTimeoutError, match=f"no route for topic 'Topic' .* {fake_broker.address}"):
            await producer.send(Message("Topic", b"x"))
        assert trio.current_time() == pytest.approx(1.0)


async def test_without_a_name_server_the_error_names_them() -> None:
    async with Producer("group", namesrv="127.0.0.1:1", config=ClientConfig(connect=False)) as producer:
        with pytest.raises(NameServerError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
            await producer.send(Message("Topic", b"x"))


@pytest.mark.parametrize(
    ("code", "status"),
    [(10, SendStatus.FLUSH_DISK_TIMEOUT), (11, SendStatus.SLAVE_NOT_AVAILABLE), (12, SendStatus.FLUSH_SLAVE_TIMEOUT)],
)
async def test_a_message_that_is_stored_less_safely_is_stored(
    fake_broker: FakeBroker, code: int, status: SendStatus
) -> None:
    def less_safely(command: RemotingCommand) -> RemotingCommand:
        response = fake_broker.answer_send(command)
        response.code = code
        return response

    fake_broker.on(SEND, less_safely)
    async with Producer("group", namesrv=fake_broker.address) as producer:
        assert (await producer.send(Message("Topic", b"x"))).status is status
        assert len(fake_broker.of(SEND)) == 1
    async with Producer(
        "group", namesrv=fake_broker.address, settings=ProducerConfig(retry_another_broker_when_not_stored_ok=True)
    ) as producer:
        assert (await producer.send(Message("Topic", b"x"))).status is status
        assert len(fake_broker.of(SEND)) == 4


async def test_an_answer_that_cannot_be_read_is_a_protocol_error(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.on(SEND, lambda command: command.reply(ext_fields={"queueId": "x"}))
    with pytest.raises(ProtocolError, match="answer to a send"):
        await producer.send(Message("Topic", b"x"))


async def test_the_broker_may_choose_another_queue(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.on(SEND, lambda command: command.reply(ext_fields={"queueId": "77", "queueOffset": "1", "msgId": "id"}))
    assert (await producer.send(Message("Topic", b"x"))).queue == MessageQueue("Topic", "broker-a", 77)


async def test_a_oneway_send_does_not_wait(fake_broker: FakeBroker, producer: Producer) -> None:
    fake_broker.on(SEND, lambda _command: None)
    await producer.send_oneway(Message("Topic", b"x" * 100_000), queue=MessageQueue("Topic", "broker-a", 1))
    (request,) = await fake_broker.wait_for(SEND)
    assert request.is_oneway
    assert request.ext_fields["e"] == "1"
    assert zlib.decompress(request.body) == b"x" * 100_000


async def test_a_batch_is_one_request_with_an_id_for_each_message(fake_broker: FakeBroker, producer: Producer) -> None:
    messages = [Message("Topic", b"%d" % number, tags="T", flag=number) for number in range(3)]
    (result,) = await producer.send_batch(messages)
    (request,) = fake_broker.of(RequestCode.SEND_BATCH_MESSAGE)
    assert (request.ext_fields["m"], request.ext_fields["i"]) == ("true", "WAIT\x01true")
    entries = decode_batch(request.body)
    assert [(entry.flag, entry.body) for entry in entries] == [(0, b"0"), (1, b"1"), (2, b"2")]
    ids = [decode_properties(entry.properties)["UNIQ_KEY"] for entry in entries]
    assert result.message_id == ",".join(ids)
    assert len(set(ids)) == 3


async def test_a_large_batch_is_split_and_stays_in_order(fake_broker: FakeBroker) -> None:
    async with Producer(
        "group", namesrv=fake_broker.address, settings=ProducerConfig(max_message_size_bytes=10_000)
    ) as producer:
        messages = [Message("Topic", b"%04d" % number * 100) for number in range(100)]
        queue = MessageQueue("Topic", "broker-a", 1)
        results = await producer.send_batch(messages, queue=queue)
    requests = fake_broker.of(RequestCode.SEND_BATCH_MESSAGE)
    assert len(results) == len(requests) > 5
    assert {result.queue for result in results} == {queue}
    assert all(len(request.body) < 10_000 for request in requests)
    assert [entry.body for request in requests for entry in decode_batch(request.body)] == [m.body for m in messages]


async def test_a_failed_batch_tells_how_much_is_stored(fake_broker: FakeBroker) -> None:
    count = 0

    def fail_third(command: RemotingCommand) -> RemotingCommand:
        nonlocal count
        count += 1
        return fake_broker.answer_send(command) if count < 3 else command.reply(ResponseCode.SYSTEM_BUSY)

    fake_broker.on(RequestCode.SEND_BATCH_MESSAGE, fail_third)
    async with Producer(
        "group",
        namesrv=fake_broker.address,
        settings=ProducerConfig(max_message_size_bytes=1_000, on_busy="raise"),
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
def test_split_batch_holds_each_message_once_in_order_in_limit(sizes: list[int], limit: int) -> None:
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


async def test_brokers_hear_of_the_group_and_of_its_end(fake_broker: FakeBroker) -> None:
    async with Producer("group", namesrv=fake_broker.address) as producer:
        await producer.send(Message("Topic", b"x"))
        await fake_broker.wait_for(RequestCode.HEART_BEAT)
    (heartbeat, *_) = fake_broker.heartbeats()
    assert [data.group_name for data in heartbeat.producer_data_set] == ["group"]
    (goodbye,) = fake_broker.of(RequestCode.UNREGISTER_CLIENT)
    assert goodbye.ext_fields == {"clientID": heartbeat.client_id, "producerGroup": "group"}


async def test_producers_share_an_instance(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        async with Producer("one", instance=instance) as one, Producer("two", instance=instance) as two:
            await one.send(Message("Topic", b"x"))
            await two.send(Message("Topic", b"x"))
        await instance.routes.topic_route("Topic")
    assert fake_broker.connected == 1
    assert {request.ext_fields["a"] for request in fake_broker.of(SEND)} == {"one", "two"}


async def test_outside_its_block_a_producer_refuses(fake_broker: FakeBroker) -> None:
    producer = Producer("group", namesrv=fake_broker.address)
    with pytest.raises(ClientClosedError):
        await producer.send(Message("Topic", b"x"))
    async with producer:
        pass
    for attempt in (producer.send, producer.send_oneway):
        with pytest.raises(ClientClosedError):
            await attempt(Message("Topic", b"x"))
    with pytest.raises(ClientClosedError):
        await producer.send_batch([Message("Topic", b"x")])


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


async def test_many_tasks_send_at_once(fake_broker: FakeBroker, producer: Producer) -> None:
    ids: list[str] = []

    async def send() -> None:
        ids.extend([(await producer.send(Message("Topic", b"x"))).message_id for _ in range(20)])

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(send)
    assert len(set(ids)) == 64 * 20
    assert [request.opaque for request in fake_broker.of(SEND)] == sorted({r.opaque for r in fake_broker.of(SEND)})


async def test_a_lost_connection_is_made_again_for_the_next_try(
    fake_broker: FakeBroker, make_broker: BrokerFactory
) -> None:
    broker = await make_broker("broker-b")
    broker.add_topic("Topic")
    fake_broker.routes["Topic"] = broker.routes["Topic"]
    answer = broker.handlers[SEND]

    async def drop_first(command: RemotingCommand) -> RemotingCommand | None:
        broker.on(SEND, answer)
        await broker.drop()
        return None

    async with Producer("group", namesrv=fake_broker.address) as producer:
        broker.on(SEND, drop_first)
        assert (await producer.send(Message("Topic", b"x"))).status is SendStatus.SEND_OK
        assert len(broker.of(SEND)) == 2
    broker.on(SEND, drop_first)
    settings = ProducerConfig(retries=0)
    async with Producer("group", namesrv=fake_broker.address, settings=settings) as producer:
        with pytest.raises(ConnectionLostError, match="peer"):
            await producer.send(Message("Topic", b"x"))


async def test_order_topic_keeps_its_queues_while_broker_is_away(fake_broker: FakeBroker, producer: Producer) -> None:
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


async def test_an_encoded_batch_is_sent_as_it_is_and_tried_again(fake_broker: FakeBroker, producer: Producer) -> None:
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
