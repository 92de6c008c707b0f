"""What a producer gets for a message that a broker stored.

Source: behaviour.md B.3 (kernel send, 8), wire.md 5.1.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue


class SendStatus(Enum):
    """How safely a message is stored; it is stored in each case."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # not flushed to disk in time
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"  # not copied to the slave in time
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"  # no slave that could take a copy


#: Response codes that say "stored".
STATUS_BY_CODE: Final[Mapping[int, SendStatus]] = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


class SendResult(NamedTuple):
    """Where a message, or a batch in one, was stored.

    Attributes:
        status: how safely.
        message_id: the unique id its producer gave it; of a batch all, joined by commas.
        offset_message_id: the id that contains its place in the broker's commit log; of a batch likewise.
        queue: the queue.
        queue_offset: its number in the queue; of a batch that of the first.
        recall_handle: the argument of ``Producer.recall`` for a delayed message; only newer brokers return one.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None


def read_send_result(
    status: SendStatus, message_id: str, queue: MessageQueue, ext_fields: Mapping[str, str]
) -> SendResult:
    """Make the result from a broker's answer; the broker may have chosen another queue of the topic.

    Raises:
        ProtocolError: the answer lacks a field.
    """
    try:
        queue_id = int(ext_fields["queueId"])
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        offset, handle = int(ext_fields["queueOffset"]), ext_fields.get("recallHandle")
        return SendResult(status, message_id, ext_fields["msgId"], queue, offset, handle)
    except (KeyError, ValueError) as exc:
        raise ProtocolError(f"answer to a send cannot be read: {exc!r} in {dict(ext_fields)!r}") from exc
