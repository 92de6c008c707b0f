"""Sending failed messages back to the broker, for redelivery.

A message is removed from its queue only once another record of it is stored: first the broker that has it is asked
to store it again; if it cannot, the message is sent to the group's retry topic on any broker.

In broadcasting no other member could handle it: a failure is logged, and the message is skipped.

Source: behaviour.md A.7, B.14 and C.4 (7, 8); DefaultMQPushConsumerImpl.sendMessageBack.
"""

import logging
from dataclasses import dataclass
from typing import Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.route import DEFAULT_TOPIC_QUEUES, master_address, publish_queues
from triomq.client.consumer.config import DEAD_LETTER, ConsumerConfig
from triomq.client.environment import RANDOM, wall_clock_ms
from triomq.client.producer.config import STATUS_BY_CODE
from triomq.protocol.codes import MessageSysFlag, RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, BrokerResponseError, NoRouteError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import AUTO_CREATE_TOPIC, retry_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName, decode_properties, encode_properties
from triomq.protocol.requests.messages import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2

LOGGER: Final = logging.getLogger("triomq.client.consumer.processing.send_back")

#: The group under which clients send internally.  Source: MixAll.java.
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
_FIRST_RETRY_LEVEL: Final = 3  # 10 s
_TRIES: Final = 3
_COMPRESSION_BITS: Final = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)


@dataclass(slots=True, eq=False)
class SendBack:
    """Stores the failed messages of one group again.

    Attributes:
        instance: whose connections to use.
        group: the group.
        config: settings.
        sent: messages stored again so far.
    """

    instance: ClientInstance
    group: str
    config: ConsumerConfig
    sent: int = 0

    async def send(self, message: MessageExt, delay_level: int) -> bool:
        """Store a message again; return whether that worked.

        Args:
            message: it has failed ``message.reconsume_times`` times before.
            delay_level: below 0 the dead-letter topic, 0 the broker decides, above 0 that level.
        """
        try:
            await self._ask_broker(message, delay_level)
        except REMOTE_ERRORS as exc:
            LOGGER.warning("send-back refused, sending to the retry topic: %r error=%s", message, exc)
            try:
                failures = message.reconsume_times + 1
                await self._send_to_retry_topic(message, failures, self.config.max_reconsume_times)
            except REMOTE_ERRORS as second:
                LOGGER.warning("send-back failed: %r error=%s", message, second)
                return False
        self.sent += 1
        return True

    async def send_to_dead_letters(self, message: MessageExt) -> bool:
        """Store a message that an orderly consumer gives up; return whether that worked.

        It is sent to the retry topic with a number of failures that makes it a dead letter.
        """
        try:
            await self._send_to_retry_topic(message, message.reconsume_times, self.config.orderly_max_reconsume_times)
        except REMOTE_ERRORS as exc:
            LOGGER.warning("dead letter not stored: %r error=%s", message, exc)
            return False
        self.sent += 1
        return True

    async def _ask_broker(self, message: MessageExt, delay_level: int) -> None:
        address = master_address(self.instance.brokers, message.broker_name)
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self.config.max_reconsume_times,
            broker_name=message.broker_name,
        )
        code, timeout_s = RequestCode.CONSUMER_SEND_MSG_BACK, self.config.send_back_timeout_s
        await self.instance.requests.ask(address, code, header, timeout_s=timeout_s)

    async def _send_to_retry_topic(self, message: MessageExt, failures: int, max_failures: int) -> None:
        """Send a copy, on another broker if one fails.

        From ``max_failures`` failures on it is a dead letter and has no delay, which Apache's brokers would apply.

        Raises:
            NoRouteError: no broker has the retry topic.
            ClientError, BrokerResponseError: the last failure.
        """
        topic = retry_topic(self.group)
        queues = publish_queues(topic, await self.instance.routes.topic_route(topic))
        properties = decode_properties(message.encoded_properties)  # those stored, without a handler's changes
        properties.pop(PropertyName.TRANSACTION_PREPARED, None)
        properties.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.message_id)
        delay_level = 0 if failures >= max_failures else _FIRST_RETRY_LEVEL + message.reconsume_times
        properties |= {
            PropertyName.RETRY_TOPIC: self.instance.requests.namespace.wrap(message.topic),
            PropertyName.DELAY_TIME_LEVEL: str(delay_level),
        }
        encoded = encode_properties(properties).decode()
        last_error: Exception = NoRouteError(f"topic {topic!r} has no queue that can be written")
        for queue in (RANDOM.sample(queues, len(queues)) * _TRIES)[:_TRIES]:
            try:
                return await send_copy(
                    self.instance, message, queue, encoded, failures=(failures, max_failures), born_ms=wall_clock_ms()
                )
            except REMOTE_ERRORS as exc:
                last_error = exc
        raise last_error


async def send_copy(
    instance: ClientInstance,
    message: MessageExt,
    queue: MessageQueue,
    properties: str,
    *,
    failures: tuple[int, int],
    born_ms: int,
) -> None:
    """Send a copy of a message to a queue of a group's retry topic; its body as stored.

    Args:
        instance: whose connections to use.
        message: the original.
        queue: where to.
        properties: of the copy, encoded.
        failures: how often the message has failed, and from how many failures on it is a dead letter.
        born_ms: when the copy was sent, as consumers see it.

    Raises:
        NoRouteError: the queue's broker has no master now.
        ClientError, BrokerResponseError: the broker did not take it.
    """
    address = master_address(instance.brokers, queue.broker_name)
    header = SendMessageRequestHeaderV2(
        producer_group=INNER_PRODUCER_GROUP,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=DEFAULT_TOPIC_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=message.sys_flag & _COMPRESSION_BITS,  # the body is sent as stored
        born_timestamp=born_ms,
        flag=message.flag,
        properties=properties,
        reconsume_times=failures[0],
        max_reconsume_times=failures[1],
    )
    command = instance.requests.command(RequestCode.SEND_MESSAGE_V2, header, message.stored_body)
    response = await instance.requests.invoke(address, command)
    if response.code not in STATUS_BY_CODE:
        raise BrokerResponseError.from_response(response.code, response.remark, address)


class PassOver(SendBack):
    """Logs failed messages in broadcasting."""

    async def send(self, message: MessageExt, _delay_level: int) -> bool:
        """Log a message that failed, or whose handler does not return."""
        await trio.lowlevel.checkpoint()
        LOGGER.warning("message failed and will not be redelivered in broadcasting: %r", message)
        return True

    async def send_to_dead_letters(self, message: MessageExt) -> bool:
        """Log a message that an orderly consumer gives up."""
        return await self.send(message, DEAD_LETTER)
