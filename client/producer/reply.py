"""Replies to requests: what a consumer's handler sends back to the requester.

Source: behaviour.md A.8, wire.md 5.15; MessageUtil.java, DefaultMQProducerImpl.java.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.environment import RANDOM
from triomq.client.nursery import call_anywhere, call_in_thread, is_async
from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.delivery import Delivery
from triomq.client.producer.publish import TopicPlan, reply_request
from triomq.protocol.errors import BrokerResponseError, ClientError
from triomq.protocol.names import reply_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName

LOGGER: Final = logging.getLogger("triomq.client.producer.reply")

_COPIED: Final = (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT, PropertyName.TTL)


Answer: TypeAlias = Callable[[MessageExt], Awaitable[bytes | None]] | Callable[[MessageExt], bytes | None]
"""Returns the body of the reply, ``None`` for no reply; a plain function runs in a worker thread."""


#: One attempt: a broker stores the reply even if the requester has left, or does not read.
_SETTINGS: Final = ProducerConfig(on_busy="raise")


class Replier:
    """Sends the replies of a consumer's handler: ``message.reply(body)`` calls it, wherever the handler runs."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._delivery: Delivery | None = None  # most consumers never reply
        self._token = trio.lowlevel.current_trio_token()

    def __call__(self, message: MessageExt, body: bytes) -> Any:
        """Send a reply; returns an awaitable in a coroutine function, else when it has arrived."""
        return call_anywhere(self._token, partial(self._send, message, body))

    async def _send(self, message: MessageExt, body: bytes) -> None:
        properties = message.properties
        cluster = properties.get(PropertyName.CLUSTER)
        missing = [name for name in _COPIED if not properties.get(name)]
        if missing or cluster is None:
            raise ClientError(f"message {message.message_id} is no request: it has no {(*missing, 'CLUSTER')[0]}")
        copied = {name: properties[name] for name in _COPIED}
        outgoing = reply_request(body, f"{RANDOM.getrandbits(128):032X}", copied)
        if self._delivery is None:
            self._delivery = Delivery(self._instance, self._group, _SETTINGS)
        await self._delivery.send(reply_topic(cluster), outgoing, TopicPlan.choose)


class Responder:
    """A handler whose returned value is the reply: ``PushConsumer(..., on_message=Responder(answer))``.

    A message that is no request gets no reply.  A reply that its requester does not get any more is logged, and the
    message is consumed.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer: Callable[[MessageExt], Any] = answer

    async def __call__(self, message: MessageExt) -> None:
        """Reply to a message."""
        body = await (self._answer(message) if is_async(self._answer) else call_in_thread(self._answer, message))
        if body is None or PropertyName.REPLY_TO_CLIENT not in message.properties:
            return
        try:
            await message.reply(body)
        except BrokerResponseError as exc:
            LOGGER.warning("reply not delivered message_id=%s error=%s", message.message_id, exc)
