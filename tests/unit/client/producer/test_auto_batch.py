"""Messages of many tasks in shared requests: results, order, failures, cancellation."""

from collections.abc import AsyncGenerator
from itertools import chain

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.unit.client.fake_broker import FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.producer.config import ProducerConfig, SendResult
from triomq.client.producer.producer import Producer
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import BrokerResponseError, ClientClosedError, MessageIllegalError
from triomq.protocol.record.batch import decode_batch
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand

SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


class Gate:
    """Answers sends when it is opened, as a broker does: ids of all messages, offset of the first."""

    def __init__(self, broker: FakeBroker) -> None:
        self.open = trio.Event()
        self.broker = broker
        self.next_offset = 0
        self.refused = b""
        for code in (SINGLE, BATCH):
            broker.on(code, self.answer)

    async def answer(self, command: RemotingCommand) -> RemotingCommand:
        await self.open.wait()
        bodies = bodies_of(command)
        if self.refused in bodies:
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, remark="no")
        offset, self.next_offset = self.next_offset, self.next_offset + len(bodies)
        ids = ",".join(f"{offset + number:032X}" for number in range(len(bodies)))
        return command.reply(ext_fields={"msgId": ids, "queueId": command.ext_fields["e"], "queueOffset": str(offset)})

    @property
    def batches(self) -> list[list[bytes]]:
        return [bodies_of(request) for request in self.broker.requests if request.code in (SINGLE, BATCH)]


def bodies_of(request: RemotingCommand) -> list[bytes]:
    body = bytes(request.body)
    return [entry.body for entry in decode_batch(body)] if request.code == BATCH else [body]


@pytest.fixture
async def producer(fake_broker: FakeBroker) -> AsyncGenerator[Producer, None]:
    async with (
        ClientInstance(fake_broker.address) as instance,
        Producer("group", instance=instance, settings=ProducerConfig(auto_batch=True)) as opened,
    ):
        await opened.publish_queues("Topic")
        yield opened


async def send_all(producer: Producer, gate: Gate, *bodies: bytes) -> dict[bytes, SendResult | BrokerResponseError]:
    results: dict[bytes, SendResult | BrokerResponseError] = {}

    async def send(body: bytes) -> None:
        try:
            results[body] = await producer.send(Message("Topic", body, properties={"long": "x" * 3000}))
        except BrokerResponseError as exc:
            results[body] = exc

    async with trio.open_nursery() as nursery:
        for number, body in enumerate(bodies):
            nursery.start_soon(send, body)
            if number < 2:  # each in a separate request; the others arrive while these are in flight
                await wait_all_tasks_blocked(0.02)
        await wait_all_tasks_blocked(0.02)
        gate.open.set()
    return results


async def test_waiting_messages_are_batched_with_separate_results(fake_broker: FakeBroker, producer: Producer) -> None:
    gate = Gate(fake_broker)
    bodies = [b"%d" % number for number in range(50)]
    results = await send_all(producer, gate, *bodies)
    assert gate.batches[:2] == [bodies[:1], bodies[1:2]]
    assert [len(batch) > 35 for batch in gate.batches[2:]] == [True, False]  # 128 KiB with properties
    assert sorted(chain(*gate.batches), key=int) == bodies
    found = [result for result in results.values() if isinstance(result, SendResult)]
    assert sorted(result.queue_offset for result in found) == list(range(50))
    assert all(int(result.offset_message_id, 16) == result.queue_offset for result in found)
    assert len({result.message_id for result in found}) == 50


@pytest.mark.parametrize(
    "message", [Message("Topic", b"x", delay_level=1), Message("%RETRY%G", b"x"), Message("Topic", b"x" * 5000)]
)
async def test_messages_that_no_batch_takes_are_sent_alone(
    fake_broker: FakeBroker, producer: Producer, message: Message
) -> None:
    fake_broker.add_topic("%RETRY%G", 1)
    gate = Gate(fake_broker)
    gate.open.set()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(producer.send, message)
    assert (len(fake_broker.of(SINGLE)), len(fake_broker.of(BATCH))) == (5, 0)


async def test_a_refused_message_fails_alone(fake_broker: FakeBroker, producer: Producer) -> None:
    gate = Gate(fake_broker)
    gate.refused = b"bad"
    bodies = (b"0", b"1", b"2", b"bad", b"4")
    results = await send_all(producer, gate, *bodies)
    assert [body for body in bodies if isinstance(results[body], BrokerResponseError)] == [b"bad"]


async def test_request_error_fails_all_its_messages(fake_broker: FakeBroker, producer: Producer) -> None:
    gate = Gate(fake_broker)
    for code in (SINGLE, BATCH):
        fake_broker.fail(code, ResponseCode.SYSTEM_ERROR)
    results = await send_all(producer, gate, b"0", b"1", b"2", b"3")
    assert all(isinstance(result, BrokerResponseError) for result in results.values())


async def test_a_cancelled_message_that_waits_is_not_sent(fake_broker: FakeBroker, producer: Producer) -> None:
    gate = Gate(fake_broker)
    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(producer.send, Message("Topic", b"%d" % number))
            await wait_all_tasks_blocked(0.02)
        with trio.move_on_after(0.02):
            await producer.send(Message("Topic", b"cancelled"))
        nursery.start_soon(producer.send, Message("Topic", b"2"))
        await wait_all_tasks_blocked(0.02)
        gate.open.set()
    assert gate.batches == [[b"0"], [b"1"], [b"2"]]


async def test_invalid_message_is_rejected_before_it_is_queued(producer: Producer) -> None:
    with pytest.raises(MessageIllegalError):
        await producer.send(Message("Topic", b""))


async def test_leaving_fails_messages_in_flight(fake_broker: FakeBroker) -> None:
    Gate(fake_broker)
    errors: list[Exception] = []

    async def send(producer: Producer) -> None:
        try:
            await producer.send(Message("Topic", b"x"))
        except ClientClosedError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        settings = ProducerConfig(auto_batch=True)
        async with Producer("group", namesrv=fake_broker.address, settings=settings) as producer:
            for _ in range(4):
                nursery.start_soon(send, producer)
            await wait_all_tasks_blocked(0.02)
    assert len(errors) == 4
