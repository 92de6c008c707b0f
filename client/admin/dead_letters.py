"""Dead letters: messages that a group gave up on, in the topic ``%DLQ%`` + group.

They stay there until they expire.  Progress of sending them back is stored as the offset of :data:`TOOLS_GROUP` in that
topic, so a second run continues after the first.  A new message with the old body, tags, keys, flag, sharding key and
user properties is sent to the original topic, without RocketMQ's notes about retries, delays and transactions.

Source: behaviour.md A.7, 0.3; wire.md 10.4.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.client.admin.base import BaseAdmin
from triomq.client.admin.browsing import read_between
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.pull import TOOLS_GROUP, PullConsumer
from triomq.client.nursery import in_parallel
from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.producer import Producer
from triomq.client.producer.publish import encode_message_properties
from triomq.protocol.errors import ClientError, MessageIllegalError, NoRouteError, ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import DEAD_LETTER_PREFIX, dead_letter_topic
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.record.properties import PropertyName

#: Producer group that sends dead letters back.
REDRIVE_GROUP: Final = "triomq-redrive"

LOGGER: Final = logging.getLogger("triomq.client.admin.dead_letters")

_BATCH: Final = 32
_LONGEST_ID: Final = "0" * 56  # the longest that producers generate
_COMMIT_S: Final = 2.0
#: Properties that make a broker deliver a message later.
TIMERS: Final = frozenset(
    (
        PropertyName.START_DELIVER_TIME,
        PropertyName.TIMER_DELAY_SECONDS,
        PropertyName.TIMER_DELAY_MILLIS,
        PropertyName.TIMER_DELIVER_MILLIS,
    )
)


class DeadLetterCount(NamedTuple):
    """Number of dead letters of a group, and how many of them were sent back."""

    group: str
    messages: int
    redriven: int


class DeadLetter(NamedTuple):
    """One dead letter; ``original_topic`` is ``None`` if it does not name one."""

    message: MessageExt
    original_topic: str | None
    is_redriven: bool


class Redrive(NamedTuple):
    """What a run did or would do.

    Attributes:
        sent: messages sent back.
        skipped: messages that stay: they do not name an original topic, their compressed body is damaged, or producers
            may not send their properties.
        left: messages that are yet to be sent back.
    """

    sent: int
    skipped: int
    left: int


class _Span(NamedTuple):
    """A queue of dead letters: first offset, first that was not sent back, end."""

    queue: MessageQueue
    begin: int
    pending: int
    end: int


class DeadLetterAdmin(BaseAdmin):
    """Reads dead letters, and sends them back."""

    async def dead_letter_counts(self) -> list[DeadLetterCount]:
        """Return the number of dead letters of each group that ever had any, sorted by group.

        Raises:
            ClientError: a topic of dead letters is not readable.
        """
        counts, prefix = [], DEAD_LETTER_PREFIX
        groups = [topic.removeprefix(prefix) for topic in await self.topics() if topic.startswith(prefix)]
        async with PullConsumer(TOOLS_GROUP, instance=self._entered()) as pull:
            for group, spans in zip(groups, await in_parallel(partial(_spans, pull), groups), strict=True):
                messages = sum(span.end - span.begin for span in spans)
                redriven = sum(span.pending - span.begin for span in spans)
                counts.append(DeadLetterCount(group, messages, redriven))
        return counts

    async def dead_letters(self, group: str, limit: int = 100) -> list[DeadLetter]:
        """Return the oldest dead letters of a group; none if the group is unknown.

        Raises:
            ClientError: their topic is not readable.
        """
        found: list[DeadLetter] = []
        async with PullConsumer(TOOLS_GROUP, instance=self._entered()) as pull:
            for span in await _spans(pull, group):
                begin = span.begin
                while begin < span.end and len(found) < limit:
                    messages, begin = await _read(pull, span, begin)
                    found += (
                        DeadLetter(message, original_topic(message), message.queue_offset < span.pending)
                        for message in messages
                    )
        return found[:limit]

    async def redrive(
        self,
        group: str,
        *,
        limit: int | None = None,
        again: bool = False,
        dry_run: bool = False,
        on_sent: Callable[[MessageExt], None] = lambda _message: None,
    ) -> Redrive:
        """Send the dead letters of a group back to their original topics, oldest first.

        A cancelled call still records its progress; the message in flight may be sent twice.

        Args:
            group: name of the group.
            limit: maximum number of messages; ``None``: all.
            again: include those that were sent back before.
            dry_run: send nothing.
            on_sent: called with each message that was, or would be, sent back.

        Raises:
            NoRouteError: an original topic no longer exists; messages before this one were sent back.
            UnsupportedCompressionError: the package for the compression of a body is not installed.
            ClientError: the topic of the dead letters is not readable.
        """
        instance = self._entered()
        run = _Run(instance, limit, on_sent)
        # the broker accepted it once, perhaps compressed: do not reject it here
        settings = ProducerConfig(max_message_size_bytes=instance.config.max_body_bytes)
        async with (
            PullConsumer(TOOLS_GROUP, instance=instance) as pull,
            Producer(REDRIVE_GROUP, instance=instance, settings=settings) as producer,
        ):
            for span in await _spans(pull, group):
                await run.queue(pull, None if dry_run else producer, span, span.begin if again else span.pending)
        return Redrive(run.sent, run.skipped, run.left)

    async def redrive_chosen(
        self,
        group: str,
        places: Iterable[tuple[str, int, int]],
        *,
        dry_run: bool = False,
        on_sent: Callable[[MessageExt], None] = lambda _message: None,
    ) -> Redrive:
        """Send some dead letters of a group back to their original topics.

        The progress that :meth:`redrive` continues stays as it is, so that it sends them again if it comes to them.

        Args:
            group: name of the group.
            places: broker name, queue id and offset of each; those that have expired are left out.
            dry_run: send nothing.
            on_sent: called with each message that was, or would be, sent back.

        Raises:
            NoRouteError: an original topic no longer exists; messages before this one were sent back.
            UnsupportedCompressionError: the package for the compression of a body is not installed.
        """
        instance, topic = self._entered(), dead_letter_topic(group)
        run = _Run(instance, None, on_sent)
        settings = ProducerConfig(max_message_size_bytes=instance.config.max_body_bytes)
        async with (
            PullConsumer(TOOLS_GROUP, instance=instance) as pull,
            Producer(REDRIVE_GROUP, instance=instance, settings=settings) as producer,
        ):
            await pull.queues(topic, refresh=True)
            for broker_name, queue_id, offset in places:
                queue = MessageQueue(topic, broker_name, queue_id)
                for message in await read_between(pull, queue, offset, offset + 1):
                    await run.send(None if dry_run else producer, message)
        return Redrive(run.sent, run.skipped, run.left)


class _Run:
    """Sends the dead letters of one queue after the other."""

    def __init__(self, instance: ClientInstance, limit: int | None, on_sent: Callable[[MessageExt], None]) -> None:
        self.sent = self.skipped = self.left = 0
        self._instance = instance
        self._limit = limit
        self._on_sent = on_sent

    def _is_over(self) -> bool:
        return self._limit is not None and self.sent >= self._limit

    async def queue(self, pull: PullConsumer, producer: Producer | None, span: _Span, begin: int) -> None:
        """Send back the dead letters of a queue from an offset on; without a producer only count them."""
        done = noted = begin
        try:
            while done < span.end and not self._is_over():
                messages, behind = await _read(pull, span, done)
                for message in messages:
                    if self._is_over():
                        break
                    await self.send(producer, message)
                    done = message.queue_offset + 1
                else:
                    done = behind
                if producer is not None:
                    noted = await _note(pull, span, done)
        finally:
            if producer is not None and done > noted:
                with trio.move_on_after(_COMMIT_S, shield=True):
                    await _note(pull, span, done)
        self.left += span.end - done

    async def send(self, producer: Producer | None, message: MessageExt) -> None:
        """Send back one dead letter; without a producer only count it."""
        topic = original_topic(message)
        if topic is None:
            self.skipped += 1
            return
        try:
            new = as_new(message, topic)
            encode_message_properties(new, _LONGEST_ID)
        except (ProtocolError, MessageIllegalError) as exc:  # possibly the reason why it is a dead letter
            LOGGER.warning("dead letter not sent back message=%s error=%s", message.message_id, exc)
            self.skipped += 1
            return
        if producer is not None:
            await self._instance.routes.topic_route(topic)  # raises if it was deleted: a send would create it again
            await producer.send(new)
        self.sent += 1
        self._on_sent(message)


async def _note(pull: PullConsumer, span: _Span, done: int) -> int:
    """Store the progress in a queue; it never decreases."""
    await pull.commit(span.queue, max(done, span.pending))
    return done


async def _spans(pull: PullConsumer, group: str) -> list[_Span]:
    topic = dead_letter_topic(group)
    try:
        queues = await pull.queues(topic)
    except NoRouteError:  # there never was a dead letter
        return []
    if not queues:
        raise ClientError(f"topic {topic!r} is not readable; to allow it: triomq topic create '{topic}' --queues 1")
    return await in_parallel(partial(_span, pull), queues)


async def _span(pull: PullConsumer, queue: MessageQueue) -> _Span:
    begin, end = await pull.min_offset(queue), await pull.max_offset(queue)
    return _Span(queue, begin, min(max(await pull.committed(queue) or 0, begin), end), end)


async def _read(pull: PullConsumer, span: _Span, queue_offset: int) -> tuple[list[MessageExt], int]:
    """Return some messages of a queue from an offset on, and the offset after them."""
    found = await pull.pull(span.queue, queue_offset, max_messages=_BATCH)
    messages = [message for message in found.messages if message.queue_offset < span.end]
    if found.next_begin_offset <= queue_offset:  # the rest has expired meanwhile
        return messages, span.end
    return messages, min(found.next_begin_offset, span.end)


def original_topic(message: MessageExt) -> str | None:
    """Return the original topic of a dead letter, ``None`` if it does not name one."""
    properties = message.properties
    return properties.get(PropertyName.RETRY_TOPIC) or properties.get(PropertyName.DLQ_ORIGIN_TOPIC)


def as_new(message: MessageExt, topic: str) -> Message:
    """Return a dead letter as a new message.

    Raises:
        ProtocolError: its compressed body is damaged.
        UnsupportedCompressionError: the package for its compression is not installed.
    """
    properties = {name: value for name, value in message.user_properties.items() if name not in TIMERS}
    new = Message(
        topic,
        message.body,
        keys=message.keys,
        properties=properties,
        flag=message.flag,
        sharding_key=message.properties.get(PropertyName.SHARDING_KEY),
    )
    object.__setattr__(new, "tags", message.tags)  # other producers may set tags that ``Message`` rejects
    return new
