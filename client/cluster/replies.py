"""Requests that wait for the reply of a consumer, by correlation id.

Source: behaviour.md A.8, wire.md 6 (326); ClientRemotingProcessor.java, RequestFutureHolder.java.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import encode_host
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.record.record import decode_record, encode_record
from triomq.protocol.requests.messages import PushReplyMessageRequestHeader

LOGGER: Final = logging.getLogger("triomq.client.cluster.replies")


class PendingReply:
    """A reply that somebody waits for.

    Attributes:
        message: the reply, once it has arrived.
        arrived: set then.
    """

    __slots__ = ("arrived", "message")

    def __init__(self) -> None:
        self.message: MessageExt | None = None
        self.arrived = trio.Event()


class Replies:
    """The pending replies of one instance."""

    def __init__(self) -> None:
        self._pending: dict[str, PendingReply] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @contextmanager
    def expect(self, correlation_id: str) -> Iterator[PendingReply]:
        """Take the reply with this id during the block."""
        pending = self._pending[correlation_id] = PendingReply()
        try:
            yield pending
        finally:
            del self._pending[correlation_id]

    def take(self, header: PushReplyMessageRequestHeader, body: bytes) -> None:
        """Hand a reply to whoever waits for it; log one that nobody waits for any more.

        Raises:
            ProtocolError: the reply cannot be read.
        """
        message = _message(header, body)
        correlation_id = message.properties.get(PropertyName.CORRELATION_ID, "")
        pending = self._pending.get(correlation_id)
        if pending is None:
            LOGGER.warning(
                "reply dropped, its request has timed out or is unknown correlation_id=%s from=%s",
                *(correlation_id, header.born_host),
            )
            return
        pending.message = message
        pending.arrived.set()


def _message(header: PushReplyMessageRequestHeader, body: bytes) -> MessageExt:
    """Return a pushed reply as if it had been pulled; it has no place in a queue."""
    return decode_record(
        encode_record(
            queue_id=header.queue_id,
            queue_offset=0,
            physical_offset=0,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_host(header.born_host),
            store_timestamp=header.store_timestamp,
            store_host=_host(header.store_host),
            body=body,
            topic=header.topic.encode(),
            properties=(header.properties or "").encode(),
            flag=header.flag,
            reconsume_times=header.reconsume_times or 0,
        )
    )


def _host(text: str) -> bytes:
    """Encode ``/ip:port`` or ``ip:port``; brokers write both."""
    host, _, port = text.removeprefix("/").rpartition(":")
    try:
        return encode_host(host.strip("[]"), int(port))
    except (ValueError, ProtocolError):  # a name, or nothing
        return encode_host("0.0.0.0", 0)  # noqa: S104  # an unknown address
