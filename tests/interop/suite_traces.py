"""Scenarios of the client suite: what clients record about the way of a message."""

import trio

from tests.facades import Admin, LitePullConsumer, Producer, TransactionProducer
from tests.interop.suite_tools import Inbox, fresh, new_topic, push_consumer, until
from triomq.client import ConsumeStatus, Message, MessageExt, TransactionState
from triomq.protocol.names import TRACE_TOPIC
from triomq.protocol.trace import ConsumeBegun, ConsumeEnded, Published, TraceRecord, TransactionEnded, decode_trace


async def _traced(namesrv: str, message_id: str, *kinds: type[TraceRecord]) -> tuple[TraceRecord, ...]:
    """Return a record of each kind about a message, once all exist; clients store theirs in any order."""
    async with Admin(namesrv=namesrv) as admin:
        found: dict[type[TraceRecord], TraceRecord] = {}

        async def are_there() -> bool:
            nonlocal found
            messages = await admin.find_messages(TRACE_TOPIC, message_id)
            records = [record for message in messages for record in decode_trace(message.body)]
            found = {type(record): record for record in records if record.message_id == message_id}
            return found.keys() >= set(kinds)

        await until(are_there)
    return tuple(found[kind] for kind in kinds)


async def sends_and_handlers_are_traced(namesrv: str) -> None:
    topic, producers, group = await new_topic(namesrv), fresh("producer"), fresh("group")
    inbox = Inbox()

    async def on_message(message: MessageExt) -> ConsumeStatus:
        await inbox.take(message)
        return ConsumeStatus.RECONSUME_LATER

    async with (
        push_consumer(namesrv, topic, on_message, group=group, trace=True),
        Producer(producers, namesrv=namesrv, trace=True) as producer,
    ):
        result = await producer.send(Message(topic, b"body", tags="A", keys=["k1", "k2"]))
        batch = (await producer.send_batch([Message(topic, b"%d" % n, keys=f"b{n}") for n in range(2)]))[0]
        await inbox.wait_count(3)
    sent, begun, ended = await _traced(namesrv, result.message_id, Published, ConsumeBegun, ConsumeEnded)
    assert isinstance(sent, Published)
    assert (sent.group, sent.topic, sent.tags, sent.keys) == (producers, topic, "A", "k1 k2")
    assert (sent.body_bytes, sent.offset_message_id, sent.is_success) == (4, result.offset_message_id, True)
    assert isinstance(begun, ConsumeBegun)
    assert isinstance(ended, ConsumeEnded)
    assert (begun.group, begun.retry_times, begun.keys) == (group, 0, "k1 k2")
    assert (ended.request_id, ended.code, ended.is_success, ended.group) == (begun.request_id, 4, False, group)
    for message_id in batch.message_id.split(","):
        (sent,) = await _traced(namesrv, message_id, Published)
        assert isinstance(sent, Published)
        assert sent.body_bytes == 1


async def polls_and_transactions_are_traced(namesrv: str) -> None:
    topic, group = await new_topic(namesrv, queues=1), fresh("group")
    async with TransactionProducer(fresh("producer"), namesrv=namesrv, check=_roll_back, trace=True) as producer:
        transaction = await producer.send(Message(topic, b"body"), _commit)
    async with LitePullConsumer(group, namesrv=namesrv, start="earliest", trace=True) as consumer:
        await consumer.subscribe(topic)
        (message,) = await consumer.poll(30)
    assert message.message_id == transaction.result.message_id
    kinds = (Published, TransactionEnded, ConsumeBegun, ConsumeEnded)
    sent, decided, *_ = await _traced(namesrv, message.message_id, *kinds)
    assert isinstance(sent, Published)
    assert isinstance(decided, TransactionEnded)
    assert (sent.message_type, decided.message_type, decided.state) == (1, 2, "COMMIT_MESSAGE")


async def _commit(_transaction: object) -> TransactionState:
    await trio.lowlevel.checkpoint()
    return TransactionState.COMMIT


async def _roll_back(_message: MessageExt) -> TransactionState:
    await trio.lowlevel.checkpoint()
    return TransactionState.ROLLBACK
