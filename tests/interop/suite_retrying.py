"""Scenarios of the client suite: redelivery, and consumers that change while they run."""

from collections.abc import Callable
from typing import Final

from tests.interop.suite_tools import Inbox, consume, fresh, new_topic, push_consumer, send_all, send_numbered
from triomq.client import ConsumeContext, ConsumerConfig, ConsumeStatus, Message, MessageExt
from triomq.protocol.record.properties import PropertyName

_ONE_SECOND: Final = 1  # a delay level
_AT_ONCE: Final = -1  # to the dead letters


class _Refusing:
    """A batch handler that keeps its messages and fails those the test chose."""

    def __init__(self, refuses: Callable[[MessageExt], bool], delay_level: int) -> None:
        self.inbox = Inbox()
        self._refuses = refuses
        self._delay_level = delay_level

    async def take(self, messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        context.delay_level = self._delay_level
        for message in messages:
            await self.inbox.take(message)
        return ConsumeStatus.RECONSUME_LATER if any(map(self._refuses, messages)) else ConsumeStatus.SUCCESS


async def refused_message_returns_as_the_same_message(namesrv: str) -> None:
    """C.2 scenarios 40 and 42."""
    topic = await new_topic(namesrv)
    await send_all(namesrv, [Message(topic, b"x", tags="TagA", keys=["k"])])
    refusing = _Refusing(lambda message: message.reconsume_times < 2, _ONE_SECOND)
    async with push_consumer(namesrv, topic, tags="TagA", on_messages=refusing.take):
        await refusing.inbox.wait_count(3)
    messages = refusing.inbox.messages
    assert [message.reconsume_times for message in messages] == [0, 1, 2]
    assert {(message.topic, message.unique_id, message.tags, message.keys) for message in messages} == {
        (topic, messages[0].unique_id, "TagA", ("k",))
    }


async def message_refused_too_often_becomes_dead_letter(namesrv: str) -> None:
    """C.2 scenario 41."""
    topic, group = await new_topic(namesrv), fresh("group")
    await send_all(namesrv, [Message(topic, b"doomed")])
    refusing = _Refusing(lambda _message: True, _ONE_SECOND)
    settings = ConsumerConfig(max_reconsume_times=1)
    async with push_consumer(namesrv, topic, group=group, on_messages=refusing.take, settings=settings):
        await refusing.inbox.wait_count(2)
        (dead,) = await consume(namesrv, f"%DLQ%{group}", 1)
    assert refusing.inbox.bodies() == [b"doomed"] * 2
    assert (dead.body, dead.reconsume_times) == (b"doomed", 2)
    assert dead.properties[PropertyName.ORIGIN_MESSAGE_ID] == refusing.inbox.messages[0].offset_message_id


async def handler_makes_dead_letter_at_once(namesrv: str) -> None:
    """C.2 scenario 42."""
    topic, group = await new_topic(namesrv), fresh("group")
    await send_all(namesrv, [Message(topic, b"doomed")])
    refusing = _Refusing(lambda _message: True, _AT_ONCE)
    async with push_consumer(namesrv, topic, group=group, on_messages=refusing.take):
        (dead,) = await consume(namesrv, f"%DLQ%{group}", 1)
    assert (dead.body, refusing.inbox.bodies()) == (b"doomed", [b"doomed"])


async def messages_behind_ack_index_of_batch_return(namesrv: str) -> None:
    """C.2 scenario 43."""
    topic = await new_topic(namesrv, queues=1)
    await send_numbered(namesrv, topic, "n", 6)
    batches: list[list[bytes]] = []
    inbox = Inbox()

    async def take(messages: list[MessageExt], context: ConsumeContext) -> None:
        context.delay_level = _ONE_SECOND
        batches.append([message.body for message in messages])
        if messages[0].reconsume_times == 0:
            context.ack_index = 1
        for message in messages:
            await inbox.take(message)

    async with push_consumer(namesrv, topic, on_messages=take, batch_max_size=6):
        await inbox.wait_count(10)
    assert batches[0] == [b"n %d" % number for number in range(6)]
    assert sorted(inbox.bodies()[6:]) == [b"n %d" % number for number in range(2, 6)]


async def running_consumer_changes_its_subscriptions(namesrv: str) -> None:
    first, second = await new_topic(namesrv), await new_topic(namesrv)
    inbox = Inbox()
    async with push_consumer(namesrv, first, inbox.take, tags="TagA") as consumer:
        await consumer.wait_assigned()
        await consumer.subscribe(second)
        await consumer.subscribe(first, "TagB")
        await send_all(namesrv, [Message(first, b"a", tags="TagA"), Message(first, b"b", tags="TagB")])
        await send_all(namesrv, [Message(second, b"second")])
        await inbox.wait_count(2)
        await consumer.unsubscribe(first)
        consumer.suspend()
        await send_all(namesrv, [Message(first, b"not wanted", tags="TagB"), Message(second, b"late")])
        assert consumer.statistics().is_suspended
        assert {queue.topic for queue in consumer.statistics().queues} >= {second}
        consumer.resume()
        await inbox.wait_count(3)
        assert first not in {queue.topic for queue in consumer.statistics().queues}
    assert sorted(inbox.bodies()) == [b"b", b"late", b"second"]
